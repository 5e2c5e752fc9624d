//! Networks made by a test: namespaces, cables between them, and their faults.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use meshtf_testing::means::{Means, missing};

/// Network namespaces that end with the test.
pub struct Namespaces {
    pub names: Vec<String>,
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

impl Namespaces {
    /// `count` namespaces with their own `lo` only; `None` if `test` may be skipped without them.
    pub fn new(count: u32, test: &str) -> Option<Namespaces> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut namespaces = Namespaces { names: Vec::new() };
        for _ in 0..count {
            // A process of this id that was killed may have left some.
            let names = (0..8).map(|_| format!("mtf{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let Some(name) = { names }.find(|name| ip(&["netns", "add", name])) else {
                missing(Means::Namespaces, test);
                return None;
            };
            namespaces.names.push(name.clone());
            assert!(ip(&["-n", &name, "link", "set", "lo", "up"]));
        }
        Some(namespaces)
    }

    /// Lays a cable between the first two: 10.77.0.1 and 10.77.0.2.
    pub fn join(&self) {
        let [a, b] = &self.names[..] else { panic!("two namespaces") };
        assert!(ip(&["link", "add", "mtf0", "netns", a, "type", "veth", "peer", "name", "mtf0", "netns", b]));
        for (name, address) in [(a, "10.77.0.1/24"), (b, "10.77.0.2/24")] {
            assert!(ip(&["-n", name, "addr", "add", address, "dev", "mtf0"]));
            assert!(ip(&["-n", name, "link", "set", "mtf0", "up"]));
            assert!(ip(&["-n", name, "route", "add", "default", "dev", "mtf0"]));
        }
    }

    pub fn cut_cable(&self) {
        assert!(ip(&["-n", &self.names[1], "link", "set", "mtf0", "down"]));
    }

    /// Lays a cable from each but the last to a switch in the last: 10.78.0.1, 10.78.0.2 and so on.
    pub fn join_at_switch(&self) {
        let Some((switch, hosts)) = self.names.split_last() else { panic!("a namespace for the switch") };
        assert!(ip(&["-n", switch, "link", "add", "br0", "type", "bridge"]));
        assert!(ip(&["-n", switch, "link", "set", "br0", "up"]));
        for (number, host) in hosts.iter().enumerate() {
            let port = format!("port{number}");
            assert!(ip(&[
                "link", "add", "mtf0", "netns", host, "type", "veth", "peer", "name", &port, "netns", switch
            ]));
            assert!(ip(&["-n", switch, "link", "set", &port, "master", "br0", "up"]));
            assert!(ip(&["-n", host, "addr", "add", &format!("{}/24", host_address(number)), "dev", "mtf0"]));
            assert!(ip(&["-n", host, "link", "set", "mtf0", "up"]));
        }
    }

    /// From now on no packet from `from` arrives at `to`, without an error: they are sent to a hardware address that no port of
    /// the switch has.
    pub fn silence(&self, from: usize, to: usize) {
        let nowhere = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"];
        assert!(ip(
            &[&["-n", &self.names[from], "neigh", "replace", &host_address(to), "dev", "mtf0"][..], &nowhere].concat()
        ));
    }

    /// From now on the namespace `name` sends nothing over TCP to other namespaces, as behind a firewall that drops it; other
    /// protocols, multicast too, pass. `false` if this machine cannot do that.
    pub fn drop_tcp(&self, name: usize) -> bool {
        ip(&["-n", &self.names[name], "rule", "add", "ipproto", "tcp", "prio", "10", "blackhole"])
    }

    /// Undoes [`Self::silence`].
    pub fn restore(&self, from: usize, to: usize) {
        assert!(ip(&["-n", &self.names[from], "neigh", "del", &host_address(to), "dev", "mtf0"]));
    }

    /// Resets every connection from `from` to `to`; returns how many this machine was able to reset.
    pub fn reset(&self, from: usize, to: usize) -> usize {
        let arguments =
            ["netns", "exec", &self.names[from], "ss", "--kill", "--tcp", "--no-header", "dst", &host_address(to)];
        // It prints the connections that it reset, and succeeds even if the kernel cannot reset connections.
        let shown = Command::new("ip").args(arguments).output();
        shown.map_or(0, |shown| shown.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count())
    }
}

/// The address of a host at the switch.
pub fn host_address(number: usize) -> String {
    format!("10.78.0.{}", number + 1)
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

//! The checks of this machine alone: key, folders, ports, interfaces, GPUs, memory. Each has a part that inspects the machine,
//! and a pure part that concludes.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use meshtf_tensor::memory::Bytes;
use socket2::{Domain, Socket, Type};

use super::finding::Finding;
use super::interfaces::Interface;
use crate::mesh::{KeyError, MeshKey, Multiaddr, flag_of, keys_of, parse_address};

/// Less than this is little for a node that holds a model.
const LITTLE_MEMORY: u64 = 1 << 30;
/// Bytes of the block that is written to check a disk for room.
const BLOCK: usize = 4096;
/// Fewer descriptors than this are few for a mesh of some dozens of nodes.
const FEW_DESCRIPTORS: usize = 1024;

/// The key of the mesh.
pub fn key(home: &Path, mesh: &str, is_open: bool) -> Finding {
    if is_open {
        let what = format!("mesh {mesh:?} is used without a key (--open): anyone who can reach a port is admitted");
        return Finding::note("key", what, "Leave out --open, except on networks that you trust.");
    }
    of_key(mesh, MeshKey::load(home, mesh), MeshKey::is_confirmed(home, mesh), Path::new(SERVICE_HOME))
}

fn of_key(mesh: &str, key: Result<MeshKey, KeyError>, is_confirmed: bool, service: &Path) -> Finding {
    match key {
        Ok(key) if is_confirmed => Finding::ok("key", format!("mesh {mesh:?}, key {}", key.fingerprint())),
        Ok(key) => Finding::note(
            "key",
            format!(
                "mesh {mesh:?}, key {}: it was made on this machine, and no peer has proven it yet",
                key.fingerprint()
            ),
            "To join other machines, run `meshtf ticket` there and `meshtf join TICKET` here.",
        ),
        Err(KeyError::Missing { path, others, .. }) => Finding::problem(
            "key",
            format!("this machine has no key of mesh {mesh:?}: {} does not exist{}", path.display(), keys_of(&others)),
            as_service(&path, service).unwrap_or_else(|| {
                let flag = flag_of(mesh);
                format!(
                    "To join others, run `meshtf ticket{flag}` there and `meshtf join TICKET` here; to begin a mesh, start a node: \
                     `meshtf node --name local/0{flag}`."
                )
            }),
        ),
        Err(KeyError::Exposed { path, mode }) => Finding::problem(
            "key",
            format!("other users can access the key {} (its mode is {mode:04o})", path.display()),
            format!("chmod 600 {}", path.display()),
        ),
        Err(KeyError::Damaged { path }) => Finding::problem(
            "key",
            format!("{} is not a key", path.display()),
            "Move it away, and run `meshtf ticket` on another machine of the mesh and `meshtf join TICKET` here.",
        ),
        Err(KeyError::Name { name }) => Finding::problem(
            "key",
            format!("{name:?} is not the name of a mesh"),
            "1 to 64 letters, digits, `-`, `_` and `.`, the first a letter or digit: --mesh NAME or MESHTF_MESH.",
        ),
        Err(other) => Finding::problem("key", other.to_string(), "Correct the file or its folder."),
    }
}

/// The home of the user that nodes run as where the .deb is installed.
pub const SERVICE_HOME: &str = "/var/lib/meshtf";

/// The advice for reaching the mesh of this machine's service, if it has one and the key was expected elsewhere.
pub fn as_service(key: &Path, service: &Path) -> Option<String> {
    let is_other = service.is_dir() && !key.starts_with(service);
    is_other.then(|| {
        "The nodes of this machine's service run as the user meshtf, which has the key: `sudo -H -u meshtf meshtf ps`, and so \
         for every command"
            .to_owned()
    })
}

/// Whether files can be made in a folder, or the folder itself can be made.
pub fn folder(check: &'static str, path: &Path) -> Finding {
    of_folder(check, path, path.exists(), try_to_write(path))
}

/// Writes a block to a file in the folder, or in its nearest existing ancestor, and removes it: a full disk may still have room
/// for an empty file.
fn try_to_write(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let there = path.ancestors().find(|folder| folder.exists()).ok_or(io::ErrorKind::NotFound)?;
    if !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let probe = there.join(format!(".meshtf-doctor-{:016x}", crate::random::u64()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    let written = file.write_all(&[0; BLOCK]).and_then(|()| file.sync_all());
    std::fs::remove_file(probe).and(written)
}

fn of_folder(check: &'static str, path: &Path, is_there: bool, written: io::Result<()>) -> Finding {
    let shown = path.display();
    match written.map_err(|error| (error.kind(), error)) {
        Ok(()) => Finding::ok(check, format!("{shown} can be written")),
        Err((io::ErrorKind::PermissionDenied, _)) if !is_there => Finding::problem(
            check,
            format!("{shown} does not exist and cannot be created by this user"),
            format!("sudo install -d -m 700 -o $USER {shown}; another folder: MESHTF_HOME, for data --data"),
        ),
        Err((io::ErrorKind::PermissionDenied, _)) => Finding::problem(
            check,
            format!("{shown} cannot be written by this user"),
            format!("sudo chown -R $USER {shown}; another folder: MESHTF_HOME, for data --data"),
        ),
        Err((io::ErrorKind::ReadOnlyFilesystem, _)) => Finding::problem(
            check,
            format!("{shown} is on a file system that is read-only"),
            "Mount a volume there, or name another folder: MESHTF_HOME, for data --data.",
        ),
        Err((io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, error)) => Finding::problem(
            check,
            format!("{shown} cannot be written: {error}"),
            format!(
                "Free some space: `df -h {shown}` shows the free space; another folder: MESHTF_HOME, for data --data."
            ),
        ),
        Err((_, error)) => Finding::problem(
            check,
            format!("{shown} cannot be written: {error}"),
            "Name a folder that can be made there: MESHTF_HOME, for data --data.",
        ),
    }
}

/// Whether a node could listen at these addresses; without any, at a free port, and at those that tasks had before. Nodes of
/// this user and mesh listen at the addresses `own` already.
pub fn ports(
    listen: &[String],
    remembered: &[(String, Vec<SocketAddr>)],
    own: &BTreeSet<SocketAddr>,
    interfaces: &[Interface],
) -> Vec<Finding> {
    if listen.is_empty() {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut findings = vec![of_port(any, bind(any), interfaces)];
        for (task, address) in remembered.iter().filter_map(|(task, addresses)| Some((task, *addresses.first()?))) {
            let (task, port) = (task.replace('-', "/"), address.port());
            findings.push(match is_own(own, address) {
                true => {
                    Finding::ok("port", format!("{task} had TCP {port} here, at which a node of this mesh listens now"))
                }
                false => of_remembered(&task, port, bind(address).is_ok()),
            });
        }
        return findings;
    }
    let one = |text: &String| match socket(text) {
        Ok(address) if is_own(own, address) => {
            Finding::ok("port", format!("a node of this mesh, which runs here, listens at {address}"))
        }
        Ok(address) => of_port(address, bind(address), interfaces),
        Err(why) => Finding::problem("port", why, "--listen 0.0.0.0:4001"),
    };
    listen.iter().map(one).collect()
}

/// The TCP addresses among these.
pub fn sockets(addresses: &[Multiaddr]) -> BTreeSet<SocketAddr> {
    addresses.iter().filter_map(|address| socket(&address.to_string()).ok()).collect()
}

/// Whether `own` contains this address, or one of those that an unspecified address stands for.
fn is_own(own: &BTreeSet<SocketAddr>, address: SocketAddr) -> bool {
    let is_all = |address: &SocketAddr| address.ip().is_unspecified();
    let is_it = |one: &SocketAddr| one.ip() == address.ip() || is_all(one) || is_all(&address);
    own.iter().any(|one| one.port() == address.port() && is_it(one))
}

/// Listens for a moment as a node does: at an IPv6 address for IPv6 alone.
fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1)
}

fn of_remembered(task: &str, port: u16, is_free: bool) -> Finding {
    if is_free {
        return Finding::ok("port", format!("{task} had TCP {port} here, which is free for it"));
    }
    Finding::note(
        "port",
        format!("{task} had TCP {port} here, which is in use: by another program, or a node of another mesh or user"),
        format!("`ss -ltnp 'sport = :{port}'` names the program; a node takes another port if this one is taken."),
    )
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    let address = parse_address(text).map_err(|error| error.to_string())?.to_string();
    match address.split('/').collect::<Vec<_>>()[..] {
        ["", "ip4" | "ip6", host, "tcp", port] => {
            let host: IpAddr = host.parse().map_err(|_| format!("{text:?} has no IP address"))?;
            Ok((host, port.parse().map_err(|_| format!("{text:?} has no port"))?).into())
        }
        _ => Err(format!("{text:?} is not an IP address with a TCP port, which can be checked")),
    }
}

fn of_port(address: SocketAddr, bound: io::Result<()>, interfaces: &[Interface]) -> Finding {
    let port = address.port();
    match bound.map_err(|error| (error.kind(), error)) {
        Ok(()) if port == 0 => Finding::ok("port", "a free port is available for a node"),
        Ok(()) => Finding::ok("port", format!("{address} is free")),
        Err((io::ErrorKind::AddrInUse, _)) => Finding::warning(
            "port",
            format!("{address} is taken: by another program, or a node of another mesh or user"),
            format!("`ss -ltnp 'sport = :{port}'` names it; another port: --listen 0.0.0.0:PORT"),
        ),
        Err((io::ErrorKind::PermissionDenied, _)) => Finding::problem(
            "port",
            format!("this user may not listen at {address}"),
            "Take a port above 1023: --listen 0.0.0.0:4001.",
        ),
        Err((io::ErrorKind::AddrNotAvailable, _)) => Finding::problem(
            "port",
            format!("{} is not an address of this machine", address.ip()),
            format!("It has {}; 0.0.0.0 is all of them.", names(interfaces)),
        ),
        Err((_, error)) => {
            Finding::problem("port", format!("a node cannot listen at {address}: {error}"), "--listen 0.0.0.0:4001")
        }
    }
}

/// The interfaces by which other machines can be reached.
pub fn interfaces(all: &[Interface]) -> Finding {
    let outward: Vec<Interface> = all.iter().filter(|one| one.is_up && !one.is_loopback()).cloned().collect();
    if outward.is_empty() {
        let what = "only the loopback interface is up, so other machines cannot be reached";
        return Finding::warning("interfaces", what, "Connect a cable or Wi-Fi; `ip address` shows the interfaces.");
    }
    Finding::ok("interfaces", names(&outward))
}

/// `eth0 10.0.0.7, wlan0 10.0.1.7`.
fn names(interfaces: &[Interface]) -> String {
    let named: Vec<String> = interfaces.iter().map(|one| format!("{} {}", one.name, one.address)).collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

/// The memory that a node would take as its budget, and the descriptors that it could have.
pub fn memory(budget: Option<u64>, descriptors: usize) -> Vec<Finding> {
    let mut findings = vec![match budget {
        None => {
            Finding::note("memory", "the system does not say how much memory there is", "Set a budget: --memory 4GB.")
        }
        Some(bytes) if bytes < LITTLE_MEMORY => Finding::warning(
            "memory",
            format!("a node would have {} for values, which is little", Bytes(bytes as usize)),
            "Raise the container's limit or `ulimit -v`, or give the node less to hold.",
        ),
        Some(bytes) => Finding::ok("memory", format!("a node would have {} for values", Bytes(bytes as usize))),
    }];
    if descriptors < FEW_DESCRIPTORS {
        let what = format!("a process may have {descriptors} files and sockets open, and each peer needs up to nine");
        findings.push(Finding::warning("descriptors", what, "ulimit -n 65536; of a service: LimitNOFILE=65536"));
    }
    findings
}

/// Files of the system that belong to graphics hardware, and whether this user may open them.
pub fn graphics_files() -> Vec<(PathBuf, bool)> {
    let folder = |path: &str, prefix: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let paths = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        paths.map(|entry| entry.path()).collect()
    };
    let mut all = folder("/dev/dri", "renderD");
    all.extend(folder("/dev", "nvidia0"));
    all.sort();
    let may_open = |path: &PathBuf| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    all.into_iter().map(|path| (path.clone(), may_open(&path))).collect()
}

/// The GPUs that were found, or the reason why there may be none.
pub fn gpus(found: &[String], files: &[(PathBuf, bool)]) -> Finding {
    if !found.is_empty() {
        return Finding::ok("gpu", found.join(", "));
    }
    match files.iter().find(|(_, may_open)| !may_open).or(files.first()) {
        None => Finding::note("gpu", "there is no GPU; graphs run on the CPU", "A GPU is optional."),
        Some((path, false)) => Finding::warning(
            "gpu",
            format!("there is graphics hardware, but this user may not open {}", path.display()),
            "sudo usermod -aG render $USER, and log in again; of a container: --device /dev/dri",
        ),
        Some((path, true)) => Finding::warning(
            "gpu",
            format!("there is graphics hardware ({}), but no Vulkan driver reaches it", path.display()),
            "Install the driver with its Vulkan part: mesa-vulkan-drivers (AMD, Intel), libnvidia-gl (NVIDIA); `vulkaninfo` \
             shows what is found.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[track_caller]
    fn check(finding: Finding, level: Level, what: &str, remedy: &str) {
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.what.contains(what) && finding.remedy.as_deref().unwrap_or("").contains(remedy), "{finding:?}");
    }

    #[test]
    fn the_key_is_there_or_there_is_a_way_to_it() {
        let (key, path) = (MeshKey::from_bytes([7; 32]), PathBuf::from("/h/keys/lab.key"));
        let none = Path::new("/no/such/folder");
        let of_key = |mesh: &str, key, is_confirmed| super::of_key(mesh, key, is_confirmed, none);
        let name = key.fingerprint();
        check(of_key("lab", Ok(key.clone()), true), Level::Ok, &name, "");
        check(of_key("lab", Ok(key), false), Level::Note, "was made on this machine", "meshtf join");
        let missing = |others| KeyError::Missing { mesh: "lab".into(), path: path.clone(), others };
        check(
            of_key("lab", Err(missing(vec![])), true),
            Level::Problem,
            "/h/keys/lab.key does not exist",
            "`meshtf node --name local/0 --mesh lab`",
        );
        check(of_key("lab", Err(missing(vec!["meshtf".into()])), true), Level::Problem, "(--mesh NAME): meshtf", "");
        // On a machine that runs a service, the service's user has the key.
        let service = temp_dir::TempDir::new().unwrap();
        let found = super::of_key("lab", Err(missing(vec![])), true, service.path());
        check(found, Level::Problem, "no key of mesh", "sudo -H -u meshtf meshtf");
        let exposed = KeyError::Exposed { path: path.clone(), mode: 0o644 };
        check(of_key("lab", Err(exposed), true), Level::Problem, "0644", "chmod 600 /h/keys/lab.key");
        check(of_key("lab", Err(KeyError::Damaged { path }), true), Level::Problem, "is not a key", "Move it away");
    }

    #[test]
    fn a_folder_can_be_written_or_not() {
        let folder = temp_dir::TempDir::new().unwrap();
        let path = folder.path().join("not/yet");
        check(super::folder("data", &path), Level::Ok, "not/yet can be written", "");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        let relative = format!("none-{:016x}/yet", crate::random::u64());
        check(super::folder("data", Path::new(&relative)), Level::Ok, "yet can be written", "");
        std::fs::write(folder.path().join("file"), "").unwrap();
        check(super::folder("data", &folder.path().join("file")), Level::Problem, "cannot be written", "--data");
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let of_folder = |check, path, written| super::of_folder(check, path, true, written);
        check(of_folder("home", Path::new("/h"), denied()), Level::Problem, "by this user", "chown -R $USER /h");
        // The folder above it belongs to another user.
        let found = super::of_folder("home", Path::new("/h/x"), false, denied());
        check(found, Level::Problem, "/h/x does not exist", "install -d -m 700 -o $USER /h/x");
        let full = Err(io::ErrorKind::StorageFull.into());
        check(of_folder("data", Path::new("/h"), full), Level::Problem, "cannot be written", "df -h /h");
        let read_only = Err(io::ErrorKind::ReadOnlyFilesystem.into());
        check(of_folder("home", Path::new("/h"), read_only), Level::Problem, "read-only", "Mount a volume");
    }

    #[test]
    fn a_port_is_free_or_taken() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = held.local_addr().unwrap();
        let all = [Interface { name: "eth0".into(), address: [10, 0, 0, 7].into(), is_up: true, has_multicast: true }];
        let own = |address: SocketAddr| BTreeSet::from([address]);
        let other: SocketAddr = "192.0.2.9:9".parse().unwrap();
        let one = |listen: &str| super::ports(&[listen.to_owned()], &[], &own(other), &all).remove(0);
        check(one(&taken.to_string()), Level::Warning, "is taken", &format!("sport = :{}", taken.port()));
        check(one("127.0.0.1:0"), Level::Ok, "free", "");
        check(one("192.0.2.1:9"), Level::Problem, "192.0.2.1 is not an address of this machine", "eth0 10.0.0.7");
        check(one("nonsense"), Level::Problem, "not an address", "--listen");
        let before = [("ps-3".to_owned(), vec![taken])];
        let [free, again] = <[_; 2]>::try_from(super::ports(&[], &before, &own(other), &all)).unwrap();
        check(free, Level::Ok, "a free port", "");
        check(again, Level::Note, &format!("ps/3 had TCP {} here, which is in use", taken.port()), "ss -ltnp");
        check(of_remembered("ps/3", 7, true), Level::Ok, "is free for it", "");
        // A port that a node of this mesh holds is as it should be.
        let held = own(taken);
        check(super::ports(&[], &before, &held, &all).remove(1), Level::Ok, "a node of this mesh listens now", "");
        let listen = [taken.to_string()];
        check(super::ports(&listen, &[], &held, &all).remove(0), Level::Ok, "a node of this mesh, which runs here", "");
        let (elsewhere, every) = (format!("192.0.2.1:{}", taken.port()), format!("0.0.0.0:{}", taken.port()));
        check(
            super::ports(&[elsewhere], &[], &held, &all).remove(0),
            Level::Problem,
            "not an address of this machine",
            "",
        );
        check(
            super::ports(&[every], &[], &held, &all).remove(0),
            Level::Ok,
            "a node of this mesh, which runs here",
            "",
        );
    }

    #[test]
    fn memory_and_gpus_are_judged() {
        check(memory(Some(8 << 30), 65536).remove(0), Level::Ok, "8.59 GB", "");
        check(memory(Some(100 << 20), 65536).remove(0), Level::Warning, "little", "ulimit -v");
        check(memory(None, 65536).remove(0), Level::Note, "does not say", "--memory");
        check(memory(None, 256).remove(1), Level::Warning, "256 files", "ulimit -n");
        let file = |may_open| vec![(PathBuf::from("/dev/dri/renderD128"), may_open)];
        check(gpus(&["AMD".into()], &file(true)), Level::Ok, "AMD", "");
        check(gpus(&[], &[]), Level::Note, "no GPU", "");
        check(gpus(&[], &file(false)), Level::Warning, "may not open /dev/dri/renderD128", "usermod -aG render");
        check(gpus(&[], &file(true)), Level::Warning, "no Vulkan driver", "mesa-vulkan-drivers");
    }

    #[test]
    fn a_machine_alone_is_warned_of() {
        let one = |name: &str, address: [u8; 4]| Interface {
            name: name.into(),
            address: address.into(),
            is_up: true,
            has_multicast: true,
        };
        check(
            interfaces(&[one("lo", [127, 0, 0, 1])]),
            Level::Warning,
            "only the loopback interface is up",
            "ip address",
        );
        check(interfaces(&[one("lo", [127, 0, 0, 1]), one("eth0", [10, 0, 0, 7])]), Level::Ok, "eth0 10.0.0.7", "");
    }
}

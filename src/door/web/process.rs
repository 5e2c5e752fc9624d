//! This process, as Prometheus' client libraries describe one.

use nix::unistd::{SysconfVar, sysconf};

use crate::descriptors;

/// The numbers of a process; `None` for those that the system does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_fds: Option<usize>,
    pub max_fds: Option<usize>,
    /// Since 1970.
    pub start_seconds: Option<f64>,
}

impl Process {
    pub fn own() -> Process {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let (stat, statm) = (read("/proc/self/stat"), read("/proc/self/statm"));
        let ticks = reported(SysconfVar::CLK_TCK).filter(|ticks| *ticks > 0);
        let page = reported(SysconfVar::PAGE_SIZE);
        let field = |number: usize| stat.as_deref().and_then(|line| field(line, number));
        let seconds = |number: usize| Some(field(number)? as f64 / ticks? as f64);
        let pages = |place: usize| {
            let pages: u64 = statm.as_deref()?.split_whitespace().nth(place)?.parse().ok()?;
            pages.checked_mul(page?)
        };
        let boot = || {
            let stat = read("/proc/stat")?;
            stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()
        };
        Process {
            cpu_seconds: seconds(14).zip(seconds(15)).map(|(user, system)| user + system),
            resident_bytes: pages(1),
            virtual_bytes: pages(0),
            open_fds: descriptors::open(),
            max_fds: Some(descriptors::limit()),
            start_seconds: seconds(22).zip(boot()).map(|(after, boot)| boot + after),
        }
    }
}

/// A field of `/proc/PID/stat` by its number in proc(5), from the fourth on. The second may contain spaces.
fn field(line: &str, number: usize) -> Option<u64> {
    line.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn reported(name: SysconfVar) -> Option<u64> {
    u64::try_from(sysconf(name).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_behind_a_name_with_spaces() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 10 0 0 0 250 125 0 0 20 0 1 0 4711 9 3";
        assert_eq!([14, 15, 22].map(|number| field(line, number)), [Some(250), Some(125), Some(4711)]);
        assert_eq!(field(line, 60), None);
        assert_eq!(field("7", 14), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_all_numbers() {
        let Process { cpu_seconds, resident_bytes, virtual_bytes, open_fds, max_fds, start_seconds } = Process::own();
        assert!(resident_bytes.unwrap() > 1 << 20 && virtual_bytes > resident_bytes);
        assert!(cpu_seconds.unwrap() >= 0.0 && open_fds.unwrap() > 0 && max_fds >= open_fds);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - start_seconds.unwrap();
        // The clocks of the start and of now may be set apart by a second or two.
        assert!((-5.0..3600.0).contains(&age), "{age}");
    }
}

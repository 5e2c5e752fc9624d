//! Timers, and figures of the operating system about a process.

use std::time::{Duration, Instant};

/// Median and 99th percentile.
pub struct Spread {
    pub p50: Duration,
    pub p99: Duration,
}

/// Sorts the times and picks the two.
pub fn spread(mut times: Vec<Duration>) -> Spread {
    times.sort_unstable();
    Spread { p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] }
}

/// Times `rounds` calls one by one, after a tenth as many for warming up.
pub fn time_each(rounds: usize, mut call: impl FnMut()) -> Spread {
    for _ in 0..rounds / 10 {
        call();
    }
    let times = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    spread(times)
}

/// CPU seconds a process has used, in user and kernel mode.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the program's name in brackets and may contain any character; the wanted fields follow it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Resident memory of a process, in MB.
pub fn resident_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap_or(0.0) / 1024.0
}

pub fn micros(duration: Duration) -> String {
    format!("{:.0} µs", duration.as_secs_f64() * 1e6)
}

//! The ports at which a task was last served, so that it takes them again: tickets and addresses outlive a restart. The
//! [transports](super::transport) define the form of a port.

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use meshtf_tensor::device::Task;

use super::address::Multiaddr;
use super::error::KeyError;
use super::key::{check_mesh_name, overwrite};
use super::transport::tcp::socket_address;

/// Most bytes of such a file that are read, most ports in it, and most files of a folder.
const MAX_BYTES: u64 = 4096;
const MAX_PORTS: usize = 4;
const MAX_FILES: usize = 1024;

/// The file of a task's ports.
///
/// # Errors
/// [`KeyError::Name`] if `mesh` is not a name.
pub fn ports_file(home: &Path, mesh: &str, task: &Task) -> Result<PathBuf, KeyError> {
    Ok(folder(home, mesh)?.join(format!("{}-{}", task.job, task.index)))
}

fn folder(home: &Path, mesh: &str) -> Result<PathBuf, KeyError> {
    check_mesh_name(mesh)?;
    Ok(home.join("ports").join(mesh))
}

/// The addresses at which tasks of `mesh` listened on this machine with TCP, on every interface: by `JOB-NUMBER`, in order.
///
/// # Errors
/// [`KeyError::Name`] if `mesh` is not a name.
pub fn remembered_ports(home: &Path, mesh: &str) -> Result<Vec<(String, Vec<SocketAddr>)>, KeyError> {
    let files = fs::read_dir(folder(home, mesh)?).into_iter().flatten().flatten().take(MAX_FILES);
    let mut all: Vec<(String, Vec<SocketAddr>)> = files
        .filter(|file| !file.file_name().to_string_lossy().contains('.'))
        .map(|file| {
            let ports = load(&file.path()).iter().filter_map(|address| socket_address(address).ok()).collect();
            (file.file_name().to_string_lossy().into_owned(), ports)
        })
        .collect();
    all.sort();
    Ok(all)
}

/// The addresses at which the task is to listen again; empty if they are not known. A line that is no address is skipped.
pub fn load(path: &Path) -> Vec<Multiaddr> {
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    text.lines().filter_map(|line| line.parse().ok()).take(MAX_PORTS).collect()
}

/// Records the addresses at which the task is to listen again.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, again: &[Multiaddr]) -> Result<(), KeyError> {
    let text: String = again.iter().map(|address| format!("{address}\n")).collect();
    overwrite(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_remembered_by_task() {
        let home = temp_dir::TempDir::new().unwrap();
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Multiaddr>>();
        let file = |job: &str| ports_file(home.path(), "lab", &Task::new(job, 3)).unwrap();
        assert_eq!(load(&file("ps")), []);
        let both = addresses(&["/ip4/0.0.0.0/tcp/41", "/ip6/::/tcp/42"]);
        save(&file("ps"), &both).unwrap();
        assert_eq!(load(&file("ps")), both);
        save(&file("ps"), &addresses(&["/ip4/0.0.0.0/tcp/43"])).unwrap();
        fs::write(file("worker"), "nonsense\n/ip6/::/udp/9/quic-v1\n/ip6/::/tcp/9\n").unwrap();
        let known = remembered_ports(home.path(), "lab").unwrap();
        let at = |text: &str| vec![text.parse::<SocketAddr>().unwrap()];
        assert_eq!(known, [("ps-3".to_owned(), at("0.0.0.0:43")), ("worker-3".to_owned(), at("[::]:9"))]);
        assert_eq!(remembered_ports(home.path(), "den").unwrap(), []);
    }
}

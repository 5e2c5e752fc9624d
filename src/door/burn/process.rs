//! Which process of this machine is at the other end of a connection.

use std::net::SocketAddr;

/// The id of the process at the other end of a connection between this end and that, if it is on this machine and the system tells.
/// Reads files.
///
/// Linux lists the sockets of a machine, each with the number of its inode, and for each process those that it has open. What
/// belongs to another user cannot be seen.
#[cfg(target_os = "linux")]
pub(super) fn of_peer(ends: Option<(SocketAddr, SocketAddr)>) -> Option<u32> {
    let (own, peer) = ends?;
    if !peer.ip().is_loopback() && peer.ip() != own.ip() {
        return None;
    }
    let table = std::fs::read_to_string(if peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" }).ok()?;
    let inode = inode(&table, peer.port(), own.port())?;
    let wanted = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let has =
            |file: std::fs::DirEntry| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str());
        if files.flatten().any(has) {
            return Some(id);
        }
    }
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn of_peer(_: Option<(SocketAddr, SocketAddr)>) -> Option<u32> {
    None
}

/// The inode of the socket that has this port, and that port at its other end: the columns of `/proc/net/tcp` are number, local
/// address, remote address, state, queues, timer, retransmits, user, timeout, inode.
#[cfg(target_os = "linux")]
fn inode(table: &str, local: u16, remote: u16) -> Option<u64> {
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, own, other, _, _, _, _, _, _, inode, ..] = columns[..] else { return None };
        (port(own) == Some(local) && port(other) == Some(remote)).then(|| inode.parse().ok()).flatten()
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_of_this_process_is_known() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let ends = stream.local_addr().unwrap();
        assert_eq!(of_peer(Some((ends, stream.peer_addr().unwrap()))), Some(std::process::id()));
        drop(client);
    }
}

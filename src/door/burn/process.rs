//! The process of this machine at the other end of a connection.

#[cfg(target_os = "linux")]
use std::net::IpAddr;
use std::net::SocketAddr;

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// The number of its user.
    pub user: Option<u32>,
    /// The process's id.
    pub id: Option<u32>,
}

/// The process at the other end of a connection between these two addresses, if it is on this machine, as far as the system
/// shows it. Reads files.
///
/// Linux lists the sockets of a machine, each with its user and the number of its inode, and for each process its open sockets.
/// Those of another user's process cannot be seen.
#[cfg(target_os = "linux")]
pub(super) fn of_peer(ends: Option<(SocketAddr, SocketAddr)>) -> Process {
    let Some((own, peer)) = ends else { return Process::default() };
    let table = std::fs::read_to_string(if peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" });
    let Some((user, inode)) = table.ok().and_then(|table| socket(&table, peer, own)) else { return Process::default() };
    Process { user: Some(user), id: holder(inode) }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn of_peer(_: Option<(SocketAddr, SocketAddr)>) -> Process {
    Process::default()
}

/// The user and inode of the socket between two addresses: the columns of `/proc/net/tcp` are number, local address, remote
/// address, state, queues, timer, retransmits, user, timeout, inode.
#[cfg(target_os = "linux")]
fn socket(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<(u32, u64)> {
    let wanted = (shown(local), shown(remote));
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, own, other, _, _, _, _, user, _, inode, ..] = columns[..] else { return None };
        (own == wanted.0 && other == wanted.1).then(|| Some((user.parse().ok()?, inode.parse().ok()?))).flatten()
    })
}

/// An address in the form of the table: each four bytes as a number in this machine's byte order, in hexadecimal.
#[cfg(target_os = "linux")]
fn shown(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", address.port())
}

/// The process that has a socket open.
#[cfg(target_os = "linux")]
fn holder(inode: u64) -> Option<u32> {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_of_this_process_is_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = tokio::net::TcpListener::bind(address).await else { continue };
            let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let known = of_peer(Some((stream.local_addr().unwrap(), stream.peer_addr().unwrap())));
            assert_eq!(known.id, Some(std::process::id()), "{address}");
            assert!(known.user.is_some());
            drop(client);
        }
    }
}

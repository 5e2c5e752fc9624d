//! Meshes of processes of one machine, which meet through Unix sockets.

use super::super::address::local_name;
use super::super::registry::Registry;
use super::*;

fn local_config(registry: &Path, task: &str) -> MeshConfig {
    MeshConfig { local: true, ..config(registry, task) }
}

/// The address of `one`'s connection with `other`.
fn way(one: &Someone, other: &Someone) -> Multiaddr {
    one.mesh.roster.link(other.peer()).unwrap().connection().remote.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_clients_of_one_machine_meet_through_sockets_without_encryption() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut a = Someone::join(local_config(folder.path(), "local/0")).await.unwrap();
    let mut b = Someone::join(local_config(folder.path(), "local/1")).await.unwrap();
    let mut client = Someone::join(local_config(folder.path(), "")).await.unwrap();
    for someone in [&a, &b, &client] {
        someone.sees(&["local/0", "local/1"]).await;
    }
    for (one, other) in [(&a, &b), (&b, &a), (&client, &a), (&client, &b)] {
        assert!(local_name(&way(one, other)).is_some(), "{}", way(one, other));
    }
    // The nodes know the client once something came from it.
    for node in [&mut a, &mut b] {
        client.mesh.send(node.peer(), fetched(1, 1)).unwrap();
        node.got().await;
    }
    for elements in [10, 100_000, 3_000_000] {
        let message = fetched(1, elements);
        a.mesh.send(client.peer(), message.clone()).unwrap();
        assert!(client.got().await.1 == message, "{elements} elements came over changed");
        b.mesh.send(a.peer(), message.clone()).unwrap();
        assert!(a.got().await.1 == message, "{elements} elements came over changed");
        client.mesh.send(b.peer(), message.clone()).unwrap();
        assert!(b.got().await.1 == message, "{elements} elements came over changed");
    }
    // Other peers do not receive such an address.
    let told = a.mesh.roster.hello_for(false).addresses;
    assert!(told.iter().all(|address| !address.starts_with("/unix")), "{told:?}");
    let here = a.mesh.roster.hello_for(true).addresses;
    assert!(here.iter().any(|address| address.starts_with("/unix/@meshtf-")), "{here:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_socket_is_not_here_is_reached_over_tcp() {
    let (own, folder) = (temp_dir::TempDir::new().unwrap(), temp_dir::TempDir::new().unwrap());
    // As in a container with its own network, whose registry folder is this one's.
    let a = Someone::join(config(own.path(), "local/0")).await.unwrap();
    let key = MeshKey::from_bytes([1; 32]).fingerprint();
    let mut registry = Registry::open(folder.path(), "lab", key, a.peer().as_str().parse().unwrap()).unwrap();
    let elsewhere = format!("/unix/@meshtf-{}", a.peer()).parse().unwrap();
    registry.announce(&[elsewhere, address_of(&a)]).unwrap();
    let b = Someone::join(local_config(folder.path(), "local/1")).await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    assert_eq!(way(&b, &a), address_of(&a));
}

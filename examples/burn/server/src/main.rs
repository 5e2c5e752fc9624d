//! Serves flex devices over burn's own remote server (WebSocket), which knows nothing of meshtf: what the mesh is compared with.
//!
//! `server 127.0.0.1:3001 2`: the address, and how many devices (one unless given). Port 0 takes a free one. The address is
//! printed once the server listens.

use std::process::ExitCode;

use burn_flex::{Flex, FlexDevice};
use burn_remote::server::{BackendServer, WebSocketTransport};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "127.0.0.1:3001".into());
    let Ok(count) = words.next().map_or(Ok(1), |n| n.parse::<usize>()) else {
        eprintln!("server ADDRESS [DEVICES]: the second is a number");
        return ExitCode::FAILURE;
    };
    match serve(&address, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{address}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, count: usize) -> Result<(), Box<dyn std::error::Error>> {
    let listener = std::net::TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    BackendServer::<Flex>::new(vec![FlexDevice; count]).serve(WebSocketTransport::from_listener(listener))?;
    Ok(())
}

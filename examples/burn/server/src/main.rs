//! Flex devices behind burn's own remote server (WebSocket), without meshtf: the baseline of the bench.
//!
//! `server 127.0.0.1:3001 2` listens on that address with two devices (default: one); port 0 selects a free port. It prints the
//! address when it listens. With `--nothing` before the address, the server computes nothing, and every tensor that a client
//! reads is zero.

mod nothing;

use std::process::ExitCode;

use burn_flex::{Flex, FlexDevice};
use burn_remote::server::{BackendServer, WebSocketTransport};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let computes = words.next_if(|word| word == "--nothing").is_none();
    let address = words.next().unwrap_or_else(|| "127.0.0.1:3001".into());
    let Ok(count) = words.next().map_or(Ok(1), |n| n.parse::<u32>()) else {
        eprintln!("server [--nothing] ADDRESS [DEVICES]: the last is a number");
        return ExitCode::FAILURE;
    };
    match serve(&address, count, computes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{address}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, count: u32, computes: bool) -> Result<(), Box<dyn std::error::Error>> {
    let listener = std::net::TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    if computes {
        let devices = vec![FlexDevice; count as usize];
        BackendServer::<Flex>::new(devices).serve(WebSocketTransport::from_listener(listener))?;
    } else {
        nothing::serve(listener, count);
    }
    Ok(())
}

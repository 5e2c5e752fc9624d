//! The baseline of mirrored training: two processes that send each other the same number of bytes at once, over a bare Unix
//! socket, which is the transport between processes of one user on one machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::mirrored::BYTES;

const ROLE: &str = "--serve-exchange";

/// The other end, which is a separate process.
pub struct Pair {
    child: Child,
    stream: UnixStream,
    payload: Vec<u8>,
    room: Vec<u8>,
    path: PathBuf,
}

impl Pair {
    pub fn start() -> Pair {
        let path = std::env::temp_dir().join(format!("meshtf-bench-exchange-{}", std::process::id()));
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program).arg(ROLE).arg(&path).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a copy of this program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says that it listens");
        let stream = UnixStream::connect(&path).expect("the other end listens");
        Pair { child, stream, payload: vec![3; BYTES], room: vec![0; BYTES], path }
    }

    /// Sends the bytes, and receives the same number at the same time.
    pub fn exchange(&mut self) {
        assert!(exchange(&self.stream, &self.payload, &mut self.room), "the other end is there");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Plays the other end; returns whether `role` is that.
pub fn serve(role: &str, path: &Path) -> bool {
    if role != ROLE {
        return false;
    }
    let listener = UnixListener::bind(path).expect("a socket in the folder of temporary files");
    println!("it listens");
    let (stream, _) = listener.accept().expect("the bench connects");
    let (payload, mut room) = (vec![5; BYTES], vec![0; BYTES]);
    while exchange(&stream, &payload, &mut room) {}
    true
}

/// Sends the bytes, and receives the same number at the same time. Returns whether the other end did so too.
pub fn exchange<S: Sync>(stream: &S, payload: &[u8], room: &mut [u8]) -> bool
where
    for<'a> &'a S: Read + Write,
{
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut stream = stream;
            stream.write_all(payload).is_ok()
        });
        let mut stream = stream;
        let taken = stream.read_exact(room).is_ok();
        sent.join().expect("it does not panic") && taken
    })
}

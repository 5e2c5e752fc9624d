//! The Python program that started this node: ops call its functions (`tf.py_func`) over a Unix socket, at which the program
//! listens in a folder of its own.
//!
//! A call is the function's token and its inputs; the answer is the outputs, or a code and a text. Tensors are TensorProtos,
//! which the program's TensorFlow reads and writes. All numbers are little-endian. One connection has one call at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use meshtf_exec::Program;
use meshtf_graph::graphdef::{TensorProto, tensor_from_proto, tensor_to_proto};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Tensor, memory};
use prost::Message as _;

/// How often a call that waits checks whether its step was cancelled.
const LOOKS: Duration = Duration::from_millis(20);
/// Most idle connections.
const MAX_IDLE: usize = 16;
/// Most outputs of a function, and bytes of the text of a failure.
const MAX_OUTPUTS: usize = 4096;
const MAX_TEXT: usize = 64 << 10;

/// The program at the other end of a socket.
pub(crate) struct PythonProgram {
    path: PathBuf,
    idle: Mutex<Vec<UnixStream>>,
}

impl PythonProgram {
    /// The program that listens at that path.
    pub fn at(path: PathBuf) -> PythonProgram {
        PythonProgram { path, idle: Mutex::default() }
    }

    fn connection(&self) -> io::Result<UnixStream> {
        if let Some(idle) = lock(&self.idle).pop() {
            return Ok(idle);
        }
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(LOOKS))?;
        stream.set_write_timeout(Some(LOOKS))?;
        Ok(stream)
    }
}

impl Program for PythonProgram {
    fn call(&self, token: &str, inputs: &[Tensor], look: &dyn Fn()) -> Result<Vec<Tensor>> {
        let gone = |error: io::Error| {
            let why = format!("the program that started this node does not answer the call of {token}: {error}");
            Failure::new(Code::Unavailable, why)
        };
        // If the step is cancelled, the connection is dropped with its answer.
        let mut wire = Wire { stream: self.connection().map_err(gone)?, look };
        wire.ask(token, inputs).map_err(gone)?;
        let answer = wire.answer(gone)?;
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push(wire.stream);
        }
        answer
    }
}

/// A connection during a call.
struct Wire<'a> {
    stream: UnixStream,
    look: &'a dyn Fn(),
}

impl Wire<'_> {
    fn ask(&mut self, token: &str, inputs: &[Tensor]) -> io::Result<()> {
        self.send(&(token.len() as u32).to_le_bytes())?;
        self.send(token.as_bytes())?;
        self.send(&(inputs.len() as u32).to_le_bytes())?;
        for input in inputs {
            let bytes = tensor_to_proto(input).encode_to_vec();
            self.send(&(bytes.len() as u64).to_le_bytes())?;
            self.send(&bytes)?;
        }
        Ok(())
    }

    /// The answer, which is the function's failure, too. An error outside of it is that of the connection, which is then over.
    fn answer(&mut self, gone: impl Fn(io::Error) -> Failure) -> Result<Result<Vec<Tensor>>> {
        let odd = |why: &str| gone(io::Error::other(why.to_owned()));
        let [code] = self.number().map_err(&gone)?;
        if code != 0 {
            let length = u32::from_le_bytes(self.number().map_err(&gone)?) as usize;
            if length > MAX_TEXT {
                return Err(odd("its failure is too long"));
            }
            let mut text = vec![0; length];
            self.fill(&mut text).map_err(&gone)?;
            let code = Code::from_number(code).unwrap_or(Code::Unknown);
            return Ok(Err(Failure::new(code, String::from_utf8_lossy(&text).into_owned())));
        }
        let count = u32::from_le_bytes(self.number().map_err(&gone)?) as usize;
        if count > MAX_OUTPUTS {
            return Err(odd("it has too many outputs"));
        }
        let mut outputs = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::try_from(u64::from_le_bytes(self.number().map_err(&gone)?));
            let length = length.ok().filter(|&length| length <= i32::MAX as usize);
            let length = length.ok_or_else(|| odd("an output is larger than a message of protobuf"))?;
            // Once as bytes, once decoded.
            memory::admit(length.saturating_mul(2))?;
            let mut bytes = vec![0; length];
            self.fill(&mut bytes).map_err(&gone)?;
            let proto = TensorProto::decode(&*bytes).map_err(|error| odd(&error.to_string()))?;
            outputs.push(tensor_from_proto(proto)?);
        }
        Ok(Ok(outputs))
    }

    fn number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) => self.waits(error)?,
            }
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")),
                Ok(count) => filled += count,
                Err(error) => self.waits(error)?,
            }
        }
        Ok(())
    }

    /// Continues after a pause.
    fn waits(&self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                (self.look)();
                Ok(())
            }
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A program that answers one call with these bytes, after it has read as many as the call has.
    fn program(call_bytes: usize, answer: Vec<u8>) -> (PythonProgram, temp_dir::TempDir) {
        let folder = temp_dir::TempDir::new().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut vec![0; call_bytes]).unwrap();
            stream.write_all(&answer).unwrap();
        });
        (PythonProgram::at(path), folder)
    }

    #[test]
    fn outputs_come_back_and_failures_keep_their_code() {
        let output = tensor_to_proto(&Tensor::vector(vec![2f32, 4.0])).encode_to_vec();
        let mut answer = vec![0, 1, 0, 0, 0];
        answer.extend((output.len() as u64).to_le_bytes());
        answer.extend(&output);
        let (one, _folder) = program(4 + 1 + 4, answer);
        assert_eq!(one.call("f", &[], &|| ()).unwrap(), [Tensor::vector(vec![2f32, 4.0])]);
        assert_eq!(lock(&one.idle).len(), 1);

        let (one, _folder) = program(4 + 1 + 4, [&[11, 4, 0, 0, 0][..], b"over"].concat());
        let failure = one.call("f", &[], &|| ()).unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (Code::OutOfRange, "over"));
    }

    #[test]
    fn a_program_that_is_gone_or_answers_nonsense_is_unavailable() {
        for answer in [vec![], vec![0, 0xff, 0xff, 0xff, 0xff], vec![0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7]] {
            let (one, _folder) = program(4 + 1 + 4, answer);
            let failure = one.call("f", &[], &|| ()).unwrap_err();
            assert_eq!(failure.code, Code::Unavailable, "{failure}");
            assert_eq!(lock(&one.idle).len(), 0);
        }
        let failure = PythonProgram::at("/nonexistent/socket".into()).call("f", &[], &|| ()).unwrap_err();
        assert_eq!(failure.code, Code::Unavailable);
    }
}

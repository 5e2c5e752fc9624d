//! Memory that two processes of this machine share, and the passing of its descriptor from one to the other.
//!
//! A ring is made by the process that writes it, which passes the descriptor over a Unix socket; the other maps it for reading.
//! Its contents may change at any time, whatever the writer does, so they are only ever copied. The reader accepts only a file
//! in memory that has exactly [`RING_BYTES`] and is sealed against shrinking: reading beyond the end of a file that was
//! shortened would kill the process.

#![allow(unsafe_code, reason = "memory is mapped, and copied while another process may change it")]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_tensor::memory::{self, Budget};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::ReadBuf;

/// Bytes of a ring: small enough to stay in the processor's cache between writer and reader. Measured: a larger one is not
/// faster, and one of half the size is slower.
pub const RING_BYTES: usize = 2 << 20;
/// Most rings that this process writes. Streams beyond that send through their sockets.
const MAX_RINGS: usize = 64;
/// The rings that this process writes.
static RINGS: AtomicUsize = AtomicUsize::new(0);

/// A mapping of [`RING_BYTES`] of memory.
struct Mapping(NonNull<u8>);

// SAFETY: it owns what it points to, which any thread may access.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(file: impl AsFd, protection: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: a new mapping, which overlaps no other.
        let start = unsafe { mmap(std::ptr::null_mut(), RING_BYTES, protection, MapFlags::SHARED, file, 0) }?;
        // SAFETY: advice about pages, which the system may ignore: one large page is faulted in once instead of 512 times.
        let _ = unsafe { madvise(start, RING_BYTES, Advice::LinuxHugepage) };
        NonNull::new(start.cast()).map(Mapping).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nothing points into it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), RING_BYTES) };
    }
}

/// The writing end of a ring. It counts as memory of this process.
pub struct Written {
    mapping: Mapping,
    _counted: Counted,
}

impl Written {
    /// A ring, and the descriptor to pass to its reader; `None` if there are [`MAX_RINGS`], the memory budget has no room, or the
    /// system refuses.
    pub fn new(budget: &Arc<Budget>) -> Option<(Written, OwnedFd)> {
        let counted = Counted::within(budget)?;
        let file = sealed_memory().ok()?;
        let mapping = Mapping::of(&file, ProtFlags::READ | ProtFlags::WRITE).ok()?;
        Some((Written { mapping, _counted: counted }, file.into()))
    }

    /// Writes bytes from position `at` on.
    ///
    /// # Panics
    /// If they exceed the end.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= RING_BYTES && bytes.len() <= RING_BYTES - at, "{} bytes at {at} of a ring", bytes.len());
        // SAFETY: the part that is written was just checked to be within the mapping, which no reference points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapping.0.as_ptr().add(at), bytes.len()) };
    }
}

/// The reading end of a ring.
pub struct Read(Mapping);

impl Read {
    /// Maps a ring that a peer has passed.
    ///
    /// # Errors
    /// If it is not shared memory, or could be shortened while it is read.
    pub fn new(descriptor: OwnedFd) -> io::Result<Read> {
        let file = File::from(descriptor);
        // Ordinary files have no seals, and asking for them is an error.
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(wrong("the shared memory that it passes is not sealed against shrinking"));
        }
        // A page of a file of huge pages can be removed in spite of the seal.
        if fstatfs(&file)?.filesystem_type() != TMPFS_MAGIC {
            return Err(wrong("the shared memory that it passes is not of ordinary pages"));
        }
        let bytes = file.metadata()?.len();
        if bytes != RING_BYTES as u64 {
            return Err(wrong(&format!("the shared memory that it passes has {bytes} bytes, not {RING_BYTES}")));
        }
        Mapping::of(&file, ProtFlags::READ).map(Read)
    }

    /// Appends to `into` as many bytes from position `at` on as fit, at most `count`. Returns how many.
    ///
    /// # Panics
    /// If `count` exceeds the end.
    pub fn take(&self, at: usize, count: usize, into: &mut ReadBuf<'_>) -> usize {
        assert!(at <= RING_BYTES && count <= RING_BYTES - at, "{count} bytes at {at} of a ring");
        let count = count.min(into.remaining());
        // SAFETY: `count` bytes are within the mapping, and within the room of `into`, which are filled by the copy. The writer
        // may change them meanwhile; then other bytes are copied.
        unsafe {
            let room = into.unfilled_mut().as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.0.as_ptr().add(at), room, count);
            into.assume_init(count);
        }
        into.advance(count);
        count
    }
}

/// One of the [`MAX_RINGS`], in the memory budget.
struct Counted;

impl Counted {
    fn within(budget: &Arc<Budget>) -> Option<Counted> {
        budget.try_reserve(RING_BYTES).ok()?;
        let counted = RINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MAX_RINGS).then_some(n + 1));
        counted.ok()?;
        memory::took(RING_BYTES);
        Some(Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        memory::gave(RING_BYTES);
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A file in memory, of [`RING_BYTES`], whose size is final.
fn sealed_memory() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = |flags| memfd_create("meshtf-ring", flags);
    // Linux before 6.3 does not know the first form; some systems allow no other.
    let file = File::from(made(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| made(flags))?);
    file.set_len(RING_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The peer broke the rules of shared memory: its bytes cannot be taken.
pub fn wrong(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

/// Bytes of the room for one descriptor attached to a message. Alignment leaves room for further ones.
const BESIDE_BYTES: usize = cmsg_space!(ScmRights(1));

/// Sends one byte with a descriptor attached.
///
/// # Errors
/// The socket's.
pub fn send_with(socket: BorrowedFd<'_>, byte: u8, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); BESIDE_BYTES];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let descriptors = [descriptor];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for one descriptor");
    match sendmsg(socket, &[IoSlice::new(&[byte])], &mut beside, SendFlags::NOSIGNAL)? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(()),
    }
}

/// Takes one byte, and the descriptor attached to it if there is one; `None` at the end of the stream.
///
/// # Errors
/// The socket's; or more was attached to the byte.
pub fn take_with(socket: BorrowedFd<'_>) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut byte = [0];
    let mut room = [MaybeUninit::uninit(); BESIDE_BYTES];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let taken = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let attached = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = attached.flatten();
    let (first, second) = (descriptors.next(), descriptors.next());
    let is_cut = taken.flags.contains(ReturnFlags::CTRUNC);
    match first {
        Some(_) if is_cut || second.is_some() => Err(wrong("it passes more than one descriptor")),
        // The system had no free descriptor for it in this process.
        None if is_cut => Err(Errno::MFILE.into()),
        _ => Ok((taken.bytes == 1).then_some((byte[0], first))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut written, descriptor) = Written::new(&Arc::default()).unwrap();
        send_with(here.as_fd(), 7, descriptor.as_fd()).unwrap();
        let (byte, passed) = take_with(there.as_fd()).unwrap().unwrap();
        let read = Read::new(passed.unwrap()).unwrap();
        written.put(RING_BYTES - 3, b"abc");
        written.put(0, b"de");
        let mut room = [0; 4];
        let mut room = ReadBuf::new(&mut room);
        assert_eq!((byte, read.take(RING_BYTES - 3, 3, &mut room), read.take(0, 2, &mut room)), (7, 3, 1));
        assert_eq!(room.filled(), b"abcd");
        drop(written);
        assert_eq!(read.take(1, 1, &mut ReadBuf::new(&mut [0])), 1, "it is there for as long as somebody reads it");
    }

    #[test]
    fn what_could_be_shortened_or_has_another_size_is_refused() {
        let memory = |bytes: u64, seals: SealFlags| {
            let file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap());
            file.set_len(bytes).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            OwnedFd::from(file)
        };
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        let refused = [
            (memory(RING_BYTES as u64, SealFlags::GROW), "not sealed"),
            (memory(RING_BYTES as u64 - 1, SealFlags::SHRINK), "2097151 bytes"),
            (memory(0, SealFlags::SHRINK), "0 bytes"),
            (on_disk.into(), "not sealed"),
            (UnixStream::pair().unwrap().0.into(), "not sealed"),
        ];
        for (descriptor, why) in refused {
            let error = Read::new(descriptor).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Read::new(memory(RING_BYTES as u64, SealFlags::SHRINK)).is_ok());
    }

    #[test]
    fn more_than_one_descriptor_is_refused() {
        for count in 2..8 {
            let (here, there) = UnixStream::pair().unwrap();
            let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
            let mut beside = SendAncillaryBuffer::new(&mut room);
            let descriptors = vec![here.as_fd(); count];
            assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)));
            sendmsg(&here, &[IoSlice::new(&[1])], &mut beside, SendFlags::NOSIGNAL).unwrap();
            let error = take_with(there.as_fd()).unwrap_err().to_string();
            assert!(error.contains("more than one descriptor"), "{count}: {error}");
        }
    }

    #[test]
    fn no_ring_is_made_beyond_the_memory_budget() {
        assert!(Written::new(&Budget::of(RING_BYTES / 2)).is_none());
        assert!(Written::new(&Arc::default()).is_some());
    }

    #[test]
    fn a_byte_may_come_alone_and_a_stream_may_end() {
        use std::io::Write;
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&[3]).unwrap();
        assert!(matches!(take_with(there.as_fd()), Ok(Some((3, None)))));
        drop(here);
        assert!(matches!(take_with(there.as_fd()), Ok(None)));
    }
}

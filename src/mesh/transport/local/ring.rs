//! Memory that two processes of this machine share, and the passing of its descriptor from one to the other.
//!
//! A ring is made by the process that writes it, which passes the descriptor over a Unix socket; the other maps it for reading.
//! Its contents may change at any time, whatever the writer does, so they are only ever copied. The reader accepts only a file
//! in memory that has exactly [`RING_BYTES`] and is sealed against shrinking: reading beyond the end of a file that was
//! shortened would kill the process.

#![allow(unsafe_code, reason = "memory is mapped, and a descriptor passed, in C")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_tensor::memory;
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
    fn of(file: &impl AsRawFd, protection: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping, which overlaps no other; its result is checked.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), RING_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice about pages, which the system may ignore: one large page is faulted in once instead of 512 times.
        unsafe { libc::madvise(start, RING_BYTES, libc::MADV_HUGEPAGE) };
        NonNull::new(start.cast()).map(Mapping).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nothing points into it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), RING_BYTES) };
    }
}

/// The writing end of a ring. It counts as memory of this process.
pub struct Written {
    mapping: Mapping,
    _counted: Counted,
}

impl Written {
    /// A ring, and the descriptor to pass to its reader; `None` if there are [`MAX_RINGS`], the process's memory budget has no
    /// room, or the system refuses.
    pub fn new() -> Option<(Written, OwnedFd)> {
        let counted = Counted::new()?;
        let file = sealed_memory().ok()?;
        let mapping = Mapping::of(&file, libc::PROT_READ | libc::PROT_WRITE).ok()?;
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
        // SAFETY: asks for the flags of a descriptor, which is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        // Ordinary files have no seals, and asking for them is an error.
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(wrong("the shared memory that it passes is not sealed against shrinking"));
        }
        // A page of a file of huge pages can be removed in spite of the seal.
        if file_system(&file)? != i128::from(libc::TMPFS_MAGIC) {
            return Err(wrong("the shared memory that it passes is not of ordinary pages"));
        }
        let bytes = file.metadata()?.len();
        if bytes != RING_BYTES as u64 {
            return Err(wrong(&format!("the shared memory that it passes has {bytes} bytes, not {RING_BYTES}")));
        }
        Mapping::of(&file, libc::PROT_READ).map(Read)
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
    fn new() -> Option<Counted> {
        memory::try_reserve(RING_BYTES).ok()?;
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
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Linux before 6.3 does not know the first form; some systems allow no other.
    let made = [flags | libc::MFD_NOEXEC_SEAL, flags].into_iter().find_map(|flags| {
        // SAFETY: a name that ends with a zero; the result is checked.
        let descriptor = unsafe { libc::memfd_create(c"meshtf-ring".as_ptr(), flags) };
        // SAFETY: the descriptor is new and owned by nothing else.
        (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
    });
    let file = made.ok_or_else(io::Error::last_os_error)?;
    file.set_len(RING_BYTES as u64)?;
    // SAFETY: seals a file of this process's own.
    let sealed = unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)
    };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// The kind of file system that contains a file.
fn file_system(file: &File) -> io::Result<i128> {
    let mut about = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the system writes to `about`, all of whose fields are numbers.
    let failed = unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0;
    // SAFETY: zero is a value of every field that was not written.
    if failed { Err(io::Error::last_os_error()) } else { Ok(i128::from(unsafe { about.assume_init() }.f_type)) }
}

/// The peer broke the rules of shared memory: its bytes cannot be taken.
pub fn wrong(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

/// Room for one descriptor attached to a message, and no more: the system drops further ones.
#[repr(C)]
struct Beside {
    head: libc::cmsghdr,
    descriptor: RawFd,
}

impl Beside {
    /// The length of head and descriptor, as the head states it.
    const BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();

    /// A message of one byte with this attached. Both must outlive its use.
    fn message(&mut self, part: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = part;
        message.msg_iovlen = 1;
        message.msg_control = std::ptr::from_mut(self).cast();
        message.msg_controllen = Self::BYTES as _;
        message
    }

    fn new(descriptor: RawFd) -> Beside {
        // SAFETY: as in `message`.
        let mut head: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        head.cmsg_len = Self::BYTES as _;
        head.cmsg_level = libc::SOL_SOCKET;
        head.cmsg_type = libc::SCM_RIGHTS;
        Beside { head, descriptor }
    }
}

/// Sends one byte with a descriptor attached.
///
/// # Errors
/// The socket's.
pub fn send_with(socket: BorrowedFd<'_>, mut byte: u8, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let mut beside = Beside::new(descriptor.as_raw_fd());
    let message = beside.message(&mut part);
    // SAFETY: the message points to `part`, `byte` and `beside`, which live until the end of this function.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    match sent {
        1 => Ok(()),
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes one byte, and the descriptor attached to it if there is one; `None` at the end of the stream.
///
/// # Errors
/// The socket's; or more was attached to the byte.
pub fn take_with(socket: BorrowedFd<'_>) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    let mut beside = Beside::new(-1);
    let mut message = beside.message(&mut part);
    // SAFETY: as in `send_with`; the system writes no more than the sizes in the message.
    let taken = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    if taken < 0 {
        return Err(io::Error::last_os_error());
    }
    let beside_bytes: usize = message.msg_controllen as _;
    let whole = beside_bytes >= Beside::BYTES;
    let is_one = beside.head.cmsg_level == libc::SOL_SOCKET && beside.head.cmsg_type == libc::SCM_RIGHTS;
    let descriptor = (whole && is_one && beside.descriptor >= 0).then(|| {
        // SAFETY: the system has just opened it for this process, and returned its number nowhere else.
        unsafe { OwnedFd::from_raw_fd(beside.descriptor) }
    });
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(match descriptor {
            Some(_) => wrong("it passes more than one descriptor"),
            // The system had no free descriptor for it in this process.
            None => io::Error::from_raw_os_error(libc::EMFILE),
        });
    }
    Ok((taken == 1).then_some((byte, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut written, descriptor) = Written::new().unwrap();
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
        let memory = |bytes: u64, seals: i32| {
            // SAFETY: as in `sealed_memory`.
            let file = unsafe {
                File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC))
            };
            file.set_len(bytes).unwrap();
            // SAFETY: as there.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
            OwnedFd::from(file)
        };
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        let refused = [
            (memory(RING_BYTES as u64, libc::F_SEAL_GROW), "not sealed"),
            (memory(RING_BYTES as u64 - 1, libc::F_SEAL_SHRINK), "2097151 bytes"),
            (memory(0, libc::F_SEAL_SHRINK), "0 bytes"),
            (on_disk.into(), "not sealed"),
            (UnixStream::pair().unwrap().0.into(), "not sealed"),
        ];
        for (descriptor, why) in refused {
            let error = Read::new(descriptor).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Read::new(memory(RING_BYTES as u64, libc::F_SEAL_SHRINK)).is_ok());
    }

    #[test]
    fn no_ring_is_made_beyond_the_memory_budget() {
        memory::with_limit(RING_BYTES / 2, || assert!(Written::new().is_none()));
        assert!(Written::new().is_some());
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

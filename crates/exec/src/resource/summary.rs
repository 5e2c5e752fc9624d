//! Writers of event files, which TensorBoard reads: events wait in memory until there are enough of them, or until they have
//! waited long enough, and are then appended to the file.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshtf_kernels::Event;
use meshtf_kernels::files::{Folder, as_record, failed};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use prost::Message;

use super::Resource;
use super::list::Look;

/// Most bytes of events that wait, whatever the writer was asked for.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// The number of event files that this process has begun, which makes their names differ.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The time of the system's clock, in seconds since 1970.
pub(crate) fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64 / 1e6
}

pub(crate) struct SummaryWriter {
    name: String,
    open: Mutex<Option<Open>>,
}

/// The limits of a writer's queue.
#[derive(Clone, Copy)]
pub(crate) struct Waits {
    pub events: usize,
    pub time: Duration,
}

struct Open {
    file: File,
    /// The file as failures name it.
    name: Vec<u8>,
    /// Bytes of whole records in the file.
    written: u64,
    /// Records that wait.
    waiting: Vec<u8>,
    events: usize,
    limits: Waits,
    flushed: Instant,
}

impl Open {
    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        if self.waiting.is_empty() {
            return Ok(());
        }
        let appended = self.file.write_all(&self.waiting).and_then(|()| self.file.flush());
        if let Err(error) = appended {
            // No part of a record stays: those that follow could not be read. The events wait on.
            let _ = self.file.set_len(self.written).and_then(|()| self.file.seek(SeekFrom::Start(self.written)));
            return Err(failed(&self.name, &error));
        }
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        self.events = 0;
        Ok(())
    }

    fn append(&mut self, event: &[u8]) -> Result<()> {
        memory::admit(event.len() + 16)?;
        if self.waiting.len() + event.len() > MAX_WAITING_BYTES {
            self.flush()?;
        }
        self.waiting.extend(as_record(event));
        self.events += 1;
        let is_due = self.events > self.limits.events || self.flushed.elapsed() >= self.limits.time;
        if is_due || self.waiting.len() > MAX_WAITING_BYTES { self.flush() } else { Ok(()) }
    }
}

impl Drop for SummaryWriter {
    fn drop(&mut self) {
        // Nobody is left who could be told of a failure.
        if let Some(open) = &mut *lock(&self.open) {
            let _ = open.flush();
        }
    }
}

impl Resource for SummaryWriter {
    fn wanted() -> &'static str {
        "summary writer"
    }

    fn kind(&self) -> &'static str {
        "summary writer"
    }

    fn bytes(&self) -> usize {
        self.open.try_lock().map_or(0, |open| open.as_ref().map_or(0, |open| open.waiting.capacity()))
    }

    fn look(&self) -> Look {
        let open = self.open.try_lock().ok();
        let of = |f: fn(&Open) -> usize| open.as_ref().map(|open| open.as_ref().map_or(0, f));
        Look { bytes: of(|open| open.waiting.len()), length: of(|open| open.events), ..Look::default() }
    }

    fn unsaved(&self) -> &'static str {
        "its events are in its file"
    }
}

impl SummaryWriter {
    /// A writer without a file.
    pub fn new(name: String) -> SummaryWriter {
        SummaryWriter { name, open: Mutex::new(None) }
    }

    /// Begins an event file in a folder, unless the writer has one.
    ///
    /// # Errors
    /// PermissionDenied if the folder is not one of the task; the system's error.
    pub fn begin(&self, folder: &Folder, logdir: &[u8], limits: Waits, suffix: &str) -> Result<()> {
        let open = &mut *lock(&self.open);
        if open.is_some() {
            return Ok(());
        }
        if suffix.contains(['/', '\0']) {
            return Err(Failure::invalid(format!("filename_suffix {suffix:?} contains a slash")));
        }
        let path: PathBuf = folder.get()?.resolve(logdir)?;
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        let (time, host, process) = (seconds() as u64, host(), std::process::id());
        let own = format!("events.out.tfevents.{time:010}.{host}.{process}.{number}{suffix}");
        let name = [logdir, b"/", own.as_bytes()].concat();
        let begun = std::fs::create_dir_all(&path)
            .and_then(|()| OpenOptions::new().write(true).create_new(true).open(path.join(&own)));
        let file = begun.map_err(|error| failed(&name, &error))?;
        let flushed = Instant::now();
        let mut begun = Open { file, name, written: 0, waiting: Vec::new(), events: 0, limits, flushed };
        let version = Event::first(seconds());
        begun.append(&version.encode_to_vec())?;
        begun.flush()?;
        *open = Some(begun);
        Ok(())
    }

    /// Appends a serialised event.
    ///
    /// # Errors
    /// NotFound without a file; ResourceExhausted over the memory budget; the system's error, after which the events that waited
    /// still wait.
    pub fn append(&self, event: &[u8]) -> Result<()> {
        self.opened(|open| open.append(event))
    }

    /// Writes the events that wait.
    ///
    /// # Errors
    /// As [`SummaryWriter::append`].
    pub fn flush(&self) -> Result<()> {
        self.opened(Open::flush)
    }

    /// Writes the events that wait, and ends the file.
    ///
    /// # Errors
    /// The system's error; the file is not ended then.
    pub fn close(&self) -> Result<()> {
        self.opened(Open::flush)?;
        *lock(&self.open) = None;
        Ok(())
    }

    fn opened(&self, f: impl FnOnce(&mut Open) -> Result<()>) -> Result<()> {
        match &mut *lock(&self.open) {
            Some(open) => f(open),
            None => {
                let why = format!(
                    "Resource {} does not exist: the summary writer has no file. Run CreateSummaryFileWriter first",
                    self.name
                );
                Err(Failure::new(Code::NotFound, why))
            }
        }
    }
}

/// The name of this machine, as it may stand in a file's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.trim().chars().filter(is_plain).take(64).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

//! Counts of what GPUs are asked to do, for tests: a launch takes the host longer than most kernels take a GPU, and a tensor that
//! is read is waited for.

#[cfg(feature = "wgpu")]
use std::collections::BTreeMap;
#[cfg(feature = "wgpu")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static UPLOADS: AtomicU64 = AtomicU64::new(0);
static UPLOADED_BYTES: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);
static READ_BYTES: AtomicU64 = AtomicU64::new(0);

/// The requests to the GPUs of this process while a [`Watch`] lasted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The kernels that were launched, by name, most first.
    pub launches: Vec<(String, u64)>,
    /// Tensors that were copied to a GPU, and their bytes.
    pub uploads: u64,
    pub uploaded_bytes: u64,
    /// Tensors that were copied from a GPU, each of which was waited for, and their bytes.
    pub reads: u64,
    pub read_bytes: u64,
}

impl Traffic {
    /// The number of launches.
    pub fn launches(&self) -> u64 {
        self.launches.iter().map(|(_, count)| count).sum()
    }

    fn copied() -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            launches: Vec::new(),
            uploads: count(&UPLOADS),
            uploaded_bytes: count(&UPLOADED_BYTES),
            reads: count(&READS),
            read_bytes: count(&READ_BYTES),
        }
    }
}

/// Counts all that this process asks its GPUs to do. One watch lasts at a time.
pub struct Watch {
    before: Traffic,
    #[cfg(feature = "wgpu")]
    launches: std::sync::Arc<Launches>,
    #[cfg(feature = "wgpu")]
    _observation: cubecl::logging::LaunchObservation,
}

#[cfg(feature = "wgpu")]
#[derive(Default)]
struct Launches(Mutex<BTreeMap<&'static str, u64>>);

#[cfg(feature = "wgpu")]
impl cubecl::logging::LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        *meshtf_tensor::lock::lock(&self.0).entry(kernel).or_default() += 1;
    }
}

impl Watch {
    /// Begins to count.
    #[allow(clippy::new_without_default, reason = "it lasts")]
    pub fn new() -> Watch {
        #[cfg(feature = "wgpu")]
        let launches = std::sync::Arc::<Launches>::default();
        Watch {
            before: Traffic::copied(),
            #[cfg(feature = "wgpu")]
            _observation: cubecl::logging::LaunchObservation::new(launches.clone()),
            #[cfg(feature = "wgpu")]
            launches,
        }
    }

    /// The requests since it began.
    pub fn traffic(&self) -> Traffic {
        let now = Traffic::copied();
        Traffic {
            launches: self.launches(),
            uploads: now.uploads - self.before.uploads,
            uploaded_bytes: now.uploaded_bytes - self.before.uploaded_bytes,
            reads: now.reads - self.before.reads,
            read_bytes: now.read_bytes - self.before.read_bytes,
        }
    }

    #[cfg(feature = "wgpu")]
    fn launches(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = meshtf_tensor::lock::lock(&self.launches.0)
            .iter()
            .map(|(&name, &count)| (name.to_owned(), count))
            .collect();
        all.sort_by(|x, y| y.1.cmp(&x.1).then_with(|| x.0.cmp(&y.0)));
        all
    }

    #[cfg(not(feature = "wgpu"))]
    fn launches(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

pub(crate) fn uploaded(bytes: usize) {
    UPLOADS.fetch_add(1, Ordering::Relaxed);
    UPLOADED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

pub(crate) fn read(bytes: usize) {
    READS.fetch_add(1, Ordering::Relaxed);
    READ_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

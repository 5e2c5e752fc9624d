//! Devices of a meshtf mesh for [burn](https://burn.dev) programs.
//!
//! A node that runs with `meshtf node --burn 127.0.0.1:3000` has a door for burn programs. [`Mesh::reach`] asks it for the
//! mesh's devices; [`Mesh::device`] answers one of them as burn's own [`Device`], on which tensors, modules, optimizers
//! and burn-train work as on any other:
//!
//! ```no_run
//! use burn::tensor::Tensor;
//! use meshtf_burn::Mesh;
//!
//! let mesh = Mesh::reach("127.0.0.1:3000")?;
//! let (here, there) = (mesh.device("/job:worker/task:0")?, mesh.device("/job:worker/task:1/gpu:0")?);
//! let x = Tensor::<2>::ones([2, 3], &here);
//! let y = Tensor::<2>::ones([3, 2], &there);
//! println!("{}", x.to_device(&there).matmul(y));
//! # Ok::<(), meshtf_burn::Error>(())
//! ```

mod door;
mod error;
mod name;
#[cfg(feature = "save")]
mod save;

use burn::remote::RemoteHost;
use burn::tensor::Device;

pub use door::Door;
pub use error::Error;
use name::Name;
#[cfg(feature = "save")]
pub use save::{SaveError, Saved, id, id_of_ints, save};

/// The devices behind the door of one node: those of the whole mesh.
#[derive(Clone, Debug)]
pub struct Mesh {
    host: RemoteHost,
    names: Vec<(usize, Name)>,
}

impl Mesh {
    /// Asks the door at `address` (host and port, as in `meshtf node --burn`) for the mesh's devices.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if nothing answers there within ten seconds, [`Error::Token`] if the door asks for a token
    /// ([`Mesh::at`] takes one), [`Error::Answer`] if what answers is no door, and [`Error::Protocol`] if the door speaks to
    /// another version of burn.
    pub fn reach(address: &str) -> Result<Mesh, Error> {
        Mesh::at(address).reach()
    }

    /// The door at `address`, to be reached with a token:
    ///
    /// ```no_run
    /// # use meshtf_burn::Mesh;
    /// let mesh = Mesh::at("192.168.1.7:3000").with_token("what the node was given").reach()?;
    /// # Ok::<(), meshtf_burn::Error>(())
    /// ```
    pub fn at(address: &str) -> Door {
        Door::new(address)
    }

    /// The names of all devices, as TensorFlow writes them: `/job:worker/task:0/device:CPU:0`.
    pub fn names(&self) -> Vec<String> {
        self.names.iter().map(|(_, name)| name.to_string()).collect()
    }

    /// Connects to the device that `name` means. A part of a name will do (`/job:worker/task:1`, `/task:0/gpu:0`,
    /// `/device:GPU:0`): of several devices that it fits it means the first that is not a CPU, and without one the first.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if `name` is not written as a device's name, [`Error::NoDevice`] with the devices that are there if none
    /// fits, and [`Error::Connect`] if the door refuses or is gone.
    pub fn device(&self, name: &str) -> Result<Device, Error> {
        let asked: Name = name.parse()?;
        let fitting: Vec<&(usize, Name)> = self.names.iter().filter(|(_, name)| asked.fits(name)).collect();
        let Some((index, name)) = best(&fitting) else {
            return Err(Error::NoDevice { asked: name.to_owned(), there: self.names() });
        };
        self.connect(*index, name)
    }

    /// Connects to one device of each task of `job`, in the order of tasks: what `ExecutionStrategy::multi` of burn-train takes.
    /// Of a task's devices it is the first that is not a CPU, and without one the first.
    ///
    /// # Errors
    ///
    /// As of [`Mesh::device`]: [`Error::NoDevice`] if the job has no device.
    pub fn devices(&self, job: &str) -> Result<Vec<Device>, Error> {
        let of_job: Vec<&(usize, Name)> =
            self.names.iter().filter(|(_, name)| name.job.as_deref() == Some(job)).collect();
        let mut tasks: Vec<_> = of_job.iter().map(|(_, name)| (name.replica, name.task)).collect();
        tasks.sort_unstable();
        tasks.dedup();
        if tasks.is_empty() {
            return Err(Error::NoDevice { asked: format!("/job:{job}"), there: self.names() });
        }
        tasks
            .into_iter()
            .filter_map(|task| {
                best(&of_job.iter().copied().filter(|(_, n)| (n.replica, n.task) == task).collect::<Vec<_>>())
            })
            .map(|(index, name)| self.connect(*index, name))
            .collect()
    }

    fn connect(&self, index: usize, name: &Name) -> Result<Device, Error> {
        Device::remote_options(&self.host)
            .device_index(index)
            .init()
            .map_err(|e| Error::Connect { device: name.to_string(), reason: e.to_string() })
    }
}

/// The first that is not a CPU, and without one the first.
fn best<'a>(fitting: &[&'a (usize, Name)]) -> Option<&'a (usize, Name)> {
    fitting.iter().find(|(_, name)| !name.is_cpu()).or(fitting.first()).copied()
}

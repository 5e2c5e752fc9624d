//! Devices of a meshtf mesh for [burn](https://burn.dev) programs.
//!
//! A node with `meshtf node --burn 127.0.0.1:3000` has a door for burn programs. [`Mesh::reach`] requests the list of the
//! mesh's devices from the door. [`Mesh::device`] returns one of them as burn's own [`Device`], on which tensors, modules,
//! optimizers and burn-train work as on any other:
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

/// The devices of a mesh, through the door of one node.
#[derive(Clone, Debug)]
pub struct Mesh {
    host: RemoteHost,
    names: Vec<(usize, Name)>,
}

impl Mesh {
    /// Requests the devices of the mesh from the door at `address` (host and port, as in `meshtf node --burn`).
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no server answers there within ten seconds; [`Error::Token`] if the door requires a token
    /// ([`Mesh::at`] takes one); [`Error::Answer`] if the server is no door; [`Error::Protocol`] if the door is for another
    /// version of burn.
    pub fn reach(address: &str) -> Result<Mesh, Error> {
        Mesh::at(address).reach()
    }

    /// The door at `address`, for a connection with a token:
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

    /// Connects to the device of that name. A part of a name suffices (`/job:worker/task:1`, `/task:0/gpu:0`, `/device:GPU:0`):
    /// of several devices that match, it selects the first that is not a CPU, or else the first.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if `name` does not have the form of a device's name; [`Error::NoDevice`], with the devices of the mesh,
    /// if none matches; [`Error::Connect`] if the door refuses the session or is closed.
    pub fn device(&self, name: &str) -> Result<Device, Error> {
        let asked: Name = name.parse()?;
        let fitting: Vec<&(usize, Name)> = self.names.iter().filter(|(_, name)| asked.fits(name)).collect();
        let Some((index, name)) = best(&fitting) else {
            return Err(Error::NoDevice { asked: name.to_owned(), there: self.names() });
        };
        self.connect(*index, name)
    }

    /// Connects to one device of each task of `job`, in the order of tasks, for `ExecutionStrategy::multi` of burn-train. It is
    /// the first of a task's devices that is not a CPU, or else the first.
    ///
    /// # Errors
    ///
    /// Those of [`Mesh::device`]: [`Error::NoDevice`] if the job has no device.
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

/// The first device that is not a CPU, or else the first.
fn best<'a>(fitting: &[&'a (usize, Name)]) -> Option<&'a (usize, Name)> {
    fitting.iter().find(|(_, name)| !name.is_cpu()).or(fitting.first()).copied()
}

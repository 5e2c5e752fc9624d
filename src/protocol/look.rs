//! The inspection of a session, answered by its master: the scalars that it fetched, the plan that it ran last, and the last of
//! its steps that was traced. Pure data, and bounded.

use meshtf_graph::plan::Picture;
use meshtf_graph::trace::StepPicture;
use meshtf_tensor::device::DeviceName;
use serde::{Deserialize, Serialize};

use super::status::shorten;

/// Most scalars of a session that are kept: the first that it fetches.
pub const MAX_CURVES: usize = 4;
/// Most points of a curve that are kept. A longer one has every second of them, then every fourth, ….
pub const MAX_POINTS: usize = 128;
/// Most times of pieces that are kept of a session.
pub const MAX_LATELY: usize = 240;
/// Most nodes of a plan that is drawn, since it is planned anew for that.
pub const MAX_DRAWN: usize = 20_000;

/// Leaves every second point of a curve that has become too long, from the first one on.
pub fn thin<T>(points: &mut Vec<T>) {
    let mut place = 0;
    points.retain(|_| {
        place += 1;
        place % 2 == 1
    });
}

/// A number that a step fetched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The step, counted from 1 over all runs of the session.
    pub step: u64,
    /// The number.
    pub value: f64,
}

/// A scalar that a session fetches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// The name by which it is fetched.
    pub name: String,
    /// Its last value.
    pub last: Point,
}

/// A scalar that a session fetches, step by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The name by which it is fetched.
    pub name: String,
    /// Some of its values, as far apart as the number of steps demands.
    pub points: Vec<Point>,
    /// Its last value.
    pub last: Point,
}

/// A device is done with its piece of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceDone {
    /// The device.
    pub device: DeviceName,
    /// The step, counted from 1 over all runs of the session.
    pub step: u64,
    /// How long before the answer its master received the report, in microseconds.
    pub ago_us: u64,
}

/// The activity of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionLook {
    /// The scalars that it fetches, the first that it fetched first.
    pub curves: Vec<Curve>,
    /// The pieces of that plan that were done last, the first of them first; kept for 5 s after an inspection.
    pub lately: Vec<PieceDone>,
    /// It has ended, and only its traced step is still kept.
    pub is_over: bool,
    /// The number of the plan of which most steps are done; `None` if it has none.
    pub plan: Option<u32>,
    /// That plan; `None` if the inquirer has it already, if it has more than [`MAX_DRAWN`] nodes, or if it cannot be made any
    /// more.
    pub picture: Option<Picture>,
    /// Number of the last step that was traced and that the master still keeps.
    pub traced: Option<u64>,
    /// That step; `None` if the inquirer has it already.
    pub step: Option<StepPicture>,
}

impl SessionLook {
    /// Cuts every text to the limit of an answer.
    pub fn cut(mut self) -> Self {
        self.curves.iter_mut().for_each(|curve| shorten(&mut curve.name));
        if let Some(picture) = &mut self.picture {
            picture.boxes.iter_mut().for_each(|one| shorten(&mut one.name));
        }
        if let Some(step) = &mut self.step {
            step.bars.iter_mut().for_each(|bar| shorten(&mut bar.name));
        }
        self
    }
}

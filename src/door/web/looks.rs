//! Inspection of one session by several followers: the session is queried once for all of them, and each receives the changes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use meshtf_graph::plan::Picture;
use meshtf_graph::trace::StepPicture;
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::picture::ANSWER_LIMIT;
use super::recent::Recent;
use crate::node::Node;
use crate::protocol::look::{Curve, PieceDone, Point, SessionLook};

/// A session, and the node that is its master.
pub type Key = (Task, SessionId);

/// The session that a query names, `session=ID&master=TASK`; `None` if it names none.
///
/// # Errors
/// If it names only one of the two, or one of them is not valid.
pub fn named(query: &str) -> std::result::Result<Option<Key>, String> {
    let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    match (value("session"), value("master")) {
        (None, None) => Ok(None),
        (Some(session), Some(master)) => {
            let id =
                u64::from_str_radix(session, 16).map_err(|_| format!("session={session} is not a session id\n"))?;
            // Names of jobs need no escape, and some clients escape the slash nevertheless.
            let task = master.replace("%2F", "/").parse().map_err(|_| format!("master={master} is not a task\n"))?;
            Ok(Some((task, SessionId(id))))
        }
        _ => Err("session=ID and master=TASK must be given together\n".to_owned()),
    }
}

/// The sessions that followers inspect.
#[derive(Default)]
pub struct Looks(Mutex<HashMap<Key, Weak<Watch>>>);

/// A session that followers inspect.
pub struct Watch {
    key: Key,
    told: Recent<Told>,
}

/// A session's answer, as the data of events. The parts that change seldom have numbers.
#[derive(Clone, Default)]
struct Told {
    curves: Arc<str>,
    plan: (Option<u32>, Arc<str>),
    step: (Option<u64>, Arc<str>),
}

/// A follower of a session, and the parts it has received.
pub struct Watcher {
    watch: Arc<Watch>,
    plan: Option<Option<u32>>,
    step: Option<u64>,
}

impl Looks {
    /// Adds a follower of a session.
    pub fn watcher(&self, key: Key) -> Watcher {
        let mut all = lock(&self.0);
        all.retain(|_, watch| watch.strong_count() > 0);
        let known = all.get(&key).and_then(Weak::upgrade);
        let watch = known.unwrap_or_else(|| {
            let watch = Arc::new(Watch { key: key.clone(), told: Recent::default() });
            all.insert(key, Arc::downgrade(&watch));
            watch
        });
        Watcher { watch, plan: None, step: None }
    }
}

impl Watch {
    /// The session's answer of less than `age` ago, or a new one. Cancel-safe.
    async fn told(&self, node: &Node, age: Duration) -> Told {
        let (task, session) = &self.key;
        let ask = async |last: Option<Told>| {
            let last = last.unwrap_or_default();
            let asked = timeout(ANSWER_LIMIT, node.look(Some(task), *session, last.plan.0, last.step.0)).await;
            let late = |_| Failure::new(Code::DeadlineExceeded, format!("{} did not answer in time", task.short()));
            Ok::<_, Infallible>(last.and(*session, asked.map_err(late).flatten()))
        };
        let Ok(told) = self.told.get(age, ask).await;
        told
    }
}

impl Told {
    /// The data after this answer of the session.
    fn and(mut self, session: SessionId, look: Result<SessionLook>) -> Told {
        let id = session.to_string();
        let look = match look {
            Ok(look) => look,
            Err(failure) => {
                self.curves = json!({ "session": id, "failure": failure.message }).to_string().into();
                return self;
            }
        };
        if let (true, Some(step)) = (look.traced != self.step.0, &look.step) {
            let text = json!({ "number": look.traced, "picture": of_step(step) }).to_string();
            self.step = (look.traced, text.into());
        }
        let curves: Vec<Value> = look.curves.iter().map(of_curve).collect();
        if look.is_over {
            let over = json!({ "session": id, "curves": curves, "lately": [], "is_over": true });
            self.curves = over.to_string().into();
            return self;
        }
        let done = |one: &PieceDone| json!([device(&one.device), one.step, one.ago_us]);
        let lately: Vec<Value> = look.lately.iter().map(done).collect();
        self.curves = json!({ "session": id, "curves": curves, "lately": lately }).to_string().into();
        if look.plan != self.plan.0 {
            let picture = look.picture.as_ref().map(of_plan);
            self.plan = (look.plan, json!({ "number": look.plan, "picture": picture }).to_string().into());
        }
        self
    }
}

impl Watcher {
    /// Adds the events for the changes.
    pub async fn add_events(&mut self, node: &Node, age: Duration, to: &mut String) {
        let Told { curves, plan, step } = self.watch.told(node, age).await;
        let mut event = |name: &str, data: &str| {
            let _never = write!(to, "event: {name}\ndata: {data}\n\n");
        };
        event("curves", &curves);
        if !plan.1.is_empty() && self.plan != Some(plan.0) {
            event("plan", &plan.1);
            self.plan = Some(plan.0);
        }
        if !step.1.is_empty() && self.step != step.0 {
            event("step", &step.1);
            self.step = step.0;
        }
    }
}

/// `worker/0 CPU:0`: the page's form of a device.
fn device(name: &DeviceName) -> String {
    format!("{} {}:{}", name.task.short(), name.kind.name(), name.index)
}

fn of_curve(curve: &Curve) -> Value {
    let point = |point: &Point| json!([point.step, point.value]);
    json!({
        "name": curve.name,
        "points": curve.points.iter().map(point).collect::<Vec<_>>(),
        "last": point(&curve.last),
    })
}

fn of_plan(picture: &Picture) -> Value {
    let boxes = picture.boxes.iter().map(|one| json!([one.name, one.op, one.nodes, one.device]));
    let arrows = picture.arrows.iter().map(|arrow| json!([arrow.from, arrow.to, arrow.bytes]));
    json!({
        "devices": picture.devices.iter().map(device).collect::<Vec<_>>(),
        "boxes": boxes.collect::<Vec<_>>(),
        "more_nodes": picture.more_nodes,
        "arrows": arrows.collect::<Vec<_>>(),
        "more_arrows": picture.more_arrows,
    })
}

fn of_step(step: &StepPicture) -> Value {
    let bars = step.bars.iter().map(|bar| json!([bar.device, bar.name, bar.op, bar.start_us, bar.took_us]));
    let ways = step.ways.iter().map(|way| json!([way.from, way.sent_us, way.to, way.received_us]));
    json!({
        "took_us": step.took_us,
        "devices": step.devices.iter().map(device).collect::<Vec<_>>(),
        "bars": bars.collect::<Vec<_>>(),
        "more_bars": step.more_bars,
        "ways": ways.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_session_or_none() {
        let key = (Task::new("ps", 0), SessionId(0xab));
        assert_eq!(named("token=x&session=00000000000000ab&master=ps/0"), Ok(Some(key.clone())));
        assert_eq!(named("master=ps%2F0&session=ab"), Ok(Some(key)));
        assert_eq!(named("token=x"), Ok(None));
        for wrong in
            ["session=ab", "master=ps/0", "session=xyz&master=ps/0", "session=ab&master=ps", "session=&master=ps/0"]
        {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_told_stays_known_when_the_rest_changes() {
        let look = SessionLook { plan: Some(3), picture: Some(Picture::default()), ..SessionLook::default() };
        let step = SessionLook {
            plan: Some(3),
            traced: Some(7),
            step: Some(StepPicture { took_us: 2.5, ..StepPicture::default() }),
            curves: vec![Curve {
                name: "loss".into(),
                points: vec![Point { step: 1, value: 0.5 }, Point { step: 2, value: f64::NAN }],
                last: Point { step: 2, value: f64::NAN },
            }],
            ..SessionLook::default()
        };
        let told = Told::default().and(SessionId(1), Ok(look)).and(SessionId(1), Ok(step));
        assert!(told.plan.1.starts_with(r#"{"number":3,"picture":{"#), "{}", told.plan.1);
        let step: Value = serde_json::from_str(&told.step.1).unwrap();
        assert_eq!((&step["number"], &step["picture"]["took_us"]), (&json!(7), &json!(2.5)));
        let curves: Value = serde_json::from_str(&told.curves).unwrap();
        assert_eq!(curves["curves"], json!([{ "name": "loss", "points": [[1, 0.5], [2, null]], "last": [2, null] }]));
        let over = SessionLook { is_over: true, ..step_of_curves() };
        let over: Value = serde_json::from_str(&told.clone().and(SessionId(1), Ok(over)).curves).unwrap();
        assert_eq!((&over["is_over"], &over["curves"][0]["last"]), (&json!(true), &json!([2, 0.25])));
        let gone = told.clone().and(SessionId(1), Err(Failure::invalid("it ended")));
        assert_eq!((&gone.plan, gone.step.0), (&told.plan, Some(7)));
        assert!(gone.curves.contains(r#""failure":"it ended""#), "{}", gone.curves);
    }

    /// A session with one curve.
    fn step_of_curves() -> SessionLook {
        let last = Point { step: 2, value: 0.25 };
        SessionLook { curves: vec![Curve { name: "loss".into(), points: vec![last], last }], ..SessionLook::default() }
    }

    #[test]
    fn who_looks_into_the_same_session_shares_what_it_tells() {
        let (looks, key) = (Looks::default(), (Task::new("ps", 0), SessionId(1)));
        let (one, two) = (looks.watcher(key.clone()), looks.watcher(key.clone()));
        assert!(Arc::ptr_eq(&one.watch, &two.watch));
        drop((one, two));
        let other = looks.watcher((Task::new("ps", 1), SessionId(1)));
        assert_eq!(lock(&looks.0).len(), 1, "nobody looks into the first any more");
        drop(other);
    }
}

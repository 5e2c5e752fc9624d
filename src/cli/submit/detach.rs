//! `meshtf submit --detach` and `--heir`: a node makes the steps by itself.

use meshtf::Client;
use meshtf::node::NewRun;
use meshtf::protocol::SessionOptions;
use meshtf_graph::plan::PlaceBy;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::counted;
use serde_json::json;

use super::super::attach::{Following, How};
use super::super::detached::{Found, short_id};
use super::super::inputs::StepRequest;
use super::super::launching::Launching;
use super::super::reach::Reached;
use super::super::{Exit, Outcome, Trouble, output};
use super::StepArgs;

impl StepArgs {
    /// Gives the variables their values, and has the node of the master make the steps, which end with this command if it
    /// `stays`.
    pub(super) async fn detach(
        &self,
        reached: &Reached,
        job: &StepRequest,
        launching: &Launching,
        stays: bool,
    ) -> Outcome {
        let Reached::Mesh { node, master } = reached else {
            let flag = if stays { "--heir" } else { "--detach" };
            return Err(Trouble::input(format!("{flag}: only a node of a mesh continues without this process")));
        };
        if self.has_heir && (self.guard.is_none() || self.place_by != PlaceBy::Names) {
            let why = "--heir: another node continues only steps that are guarded (several tasks, several steps, no --guard off) \
                       and placed by names (--place names)";
            return Err(Trouble::input(why));
        }
        let (graph, begin) = self.begin(job)?;
        let options = SessionOptions {
            soft_placement: self.soft_placement,
            place_by: self.place_by,
            guard: self.guard,
            ..SessionOptions::default()
        };
        // One node for both, since variables that are placed by cost stay where its sessions have put them.
        let master = master.clone().or_else(|| node.mesh().cluster().members().next().map(|first| first.task.clone()));
        if self.weights.is_some() || self.init || job.runs_init {
            let own = SessionOptions { guard: None, ..options.clone() };
            let session = reached.session(graph, master.as_ref(), own).await?;
            let set = self.set_variables((reached, &session), job, &begin).await;
            // A failed session is closed nevertheless.
            let _ = session.close().await;
            set?;
        }
        let file = job.file.file_name().unwrap_or(job.file.as_os_str());
        let new = NewRun {
            title: file.to_string_lossy().into_owned(),
            graph: &job.graph_as_fed(),
            options,
            signature: job.signature(),
            feeds: job.feeds.iter().map(|(_, value)| value.clone()).collect(),
            steps: self.steps,
            every: self.every,
            has_heir: self.has_heir,
            is_attended: stays,
        };
        let run = NewRun::name();
        let status = launching.ask(master.as_ref(), run, node.launch(master.as_ref(), run, new)).await?;
        if stays {
            let task = master.ok_or_else(|| Trouble::mesh("no node of the mesh has a task"))?;
            let how = How { json: self.json, quiet: self.quiet, checkpoint: None };
            let following = Following::new(how, Found { task, status }).own(launching);
            return following.follow(node).await;
        }
        let (id, on) = (short_id(status.run), master.as_ref().map(Task::short).unwrap_or_default());
        if self.json {
            output::json_value(&json!({ "run": status.run.to_string(), "node": on, "steps": self.steps }))?;
        } else {
            output::line(&id)?;
        }
        if !self.quiet {
            let steps = counted(usize::try_from(self.steps).unwrap_or(usize::MAX), "step");
            eprintln!("{on} runs {steps}: `meshtf attach {id}` follows them, `meshtf stop {id}` ends them");
        }
        Ok(Exit::Ok)
    }
}

//! The stages of a training in mode pipeline, and the share of a step in which they wait, by the formula of the papers.

use meshtf_tensor::failure::counted;
use meshtf_train::job::Pipeline;
use serde_json::json;

/// A line for the whole, and one for each stage.
pub(super) fn as_lines(pipeline: &Pipeline) -> Vec<String> {
    let (stages, microbatches) = (counted(pipeline.stages.len(), "stage"), pipeline.microbatches.len());
    let parts = if microbatches == 1 { "1 micro-batch".to_owned() } else { format!("{microbatches} micro-batches") };
    let mut lines = vec![format!("{stages} and {parts}: {}", bubble(pipeline))];
    for stage in &pipeline.stages {
        let parameters = counted(usize::try_from(stage.parameters).unwrap_or(usize::MAX), "parameter");
        let crossing = match stage.receives {
            0.0 => String::new(),
            elements => format!("; {elements:.0} numbers of each example cross the cut before it"),
        };
        let (task, share) = (stage.task, 100.0 * stage.share);
        lines.push(format!("  worker/{task}: {parameters}, {share:.0} % of the arithmetic{crossing}"));
    }
    lines
}

/// `each stage waits for 14 % of a step if all take equally long, (3 - 1) / (12 + 3 - 1)`.
pub(super) fn bubble(pipeline: &Pipeline) -> String {
    let (stages, microbatches) = (pipeline.stages.len(), pipeline.microbatches.len());
    let share = 100.0 * pipeline.bubble();
    format!(
        "each stage waits for {share:.0} % of a step if all take equally long, ({stages} - 1) / ({microbatches} + {stages} - 1)"
    )
}

pub(super) fn as_json(pipeline: &Pipeline) -> serde_json::Value {
    let stages = pipeline.stages.iter().map(|stage| {
        json!({
            "task": format!("worker/{}", stage.task),
            "variables": stage.variables,
            "parameters": stage.parameters,
            "share": stage.share,
            "crossing_elements": stage.receives,
        })
    });
    let stages: Vec<_> = stages.collect();
    json!({ "stages": stages, "microbatches": pipeline.microbatches, "bubble": pipeline.bubble() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_train::job::Stage;

    #[test]
    fn stages_are_told_with_their_bubble() {
        let stage = |task: usize, parameters: u64, share: f64, receives: f64| Stage {
            task,
            variables: vec![format!("w{task}")],
            parameters,
            share,
            receives,
        };
        let stages = vec![stage(0, 1, 0.254, 0.0), stage(1, 1200, 0.746, 16.0)];
        let pipeline = Pipeline { stages, microbatches: vec![2, 2, 1] };
        assert_eq!(
            as_lines(&pipeline),
            [
                "2 stages and 3 micro-batches: each stage waits for 25 % of a step if all take equally long, (2 - 1) / (3 + 2 - 1)",
                "  worker/0: 1 parameter, 25 % of the arithmetic",
                "  worker/1: 1200 parameters, 75 % of the arithmetic; 16 numbers of each example cross the cut before it",
            ]
        );
        let json = as_json(&pipeline);
        assert_eq!((&json["bubble"], &json["stages"][1]["task"]), (&json!(0.25), &json!("worker/1")));
        assert_eq!((&json["microbatches"], &json["stages"][0]["variables"]), (&json!([2, 2, 1]), &json!(["w0"])));
    }
}

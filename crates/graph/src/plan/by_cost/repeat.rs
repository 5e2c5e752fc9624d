//! The number of times that each node runs in a step: those of a loop once for each iteration, those of the cheaper branch of a
//! conditional never.
//!
//! The iterations of a loop are counted if its condition compares a counter, which begins at a constant and changes by a
//! constant, with a constant; the shape of a tensor is one if it is known. Of other loops those of the last traced step count,
//! and [`ASSUMED`] before there is one.

use std::collections::{BTreeMap, HashMap};

use super::measured::Measured;
use crate::gradient::context::{Contexts, Kind, Place, is_loop_merge, is_loop_switch};
use crate::op::Role;
use crate::{Graph, NodeId, Output, Shapes};

/// The iterations of a loop of which nothing is known.
const ASSUMED: u64 = 10;
/// Most iterations that count.
const MAX_ITERATIONS: f64 = 1e9;
/// Deepest nesting of branches and loops; in a graph with a deeper one each node counts once.
const MAX_DEPTH: usize = 256;
/// Most nodes between a condition and the constants that it depends on, one after the other, and in all.
const MAX_STEPS: u32 = 64;
const MAX_LOOKS: u32 = 1024;

/// A conditional: the context that it is in, and its predicate.
type Conditional = (Option<Place>, Output);

/// The loops and branches of a graph.
pub(super) struct Repeats<'g> {
    graph: &'g Graph,
    shapes: &'g Shapes,
    contexts: Contexts,
    /// The LoopCond of each loop, and the number of nodes in it.
    loops: BTreeMap<Place, (NodeId, usize)>,
    counted: HashMap<Place, Option<u64>>,
    /// The nodes that may be looked at for the present loop.
    looks: u32,
}

impl<'g> Repeats<'g> {
    /// Finds them; `None` if there is none, or they are nested too deeply.
    pub fn find(graph: &'g Graph, shapes: &'g Shapes) -> Option<Repeats<'g>> {
        graph.nodes().find(|(_, node)| matches!(node.op.role, Role::Enter | Role::Switch))?;
        let contexts = Contexts::of_at_most(graph, MAX_DEPTH)?;
        let mut sizes: HashMap<Place, usize> = HashMap::new();
        let mut conditions = Vec::new();
        for (id, node) in graph.nodes() {
            let Some(place) = contexts.loop_of(contexts.of_node(id)) else { continue };
            *sizes.entry(place).or_default() += 1;
            if node.op.role == Role::LoopCond {
                conditions.push((place, id));
            }
        }
        let loops = conditions.into_iter().map(|(place, id)| (place, (id, sizes[&place]))).collect();
        Some(Repeats { graph, shapes, contexts, loops, counted: HashMap::new(), looks: 0 })
    }

    /// How often each node runs. `time` is that of one run.
    pub fn runs(&mut self, measured: &Measured, time: impl Fn(NodeId) -> u64) -> Vec<u64> {
        let depths: Vec<usize> = (0..self.contexts.len()).map(|place| self.contexts.depth(Some(place))).collect();
        let mut by_depth: Vec<Place> = (0..depths.len()).collect();
        by_depth.sort_by_key(|&place| (depths[place], place));
        let iterations: Vec<u64> = (0..depths.len())
            .map(|place| match self.contexts.kind(place) {
                Kind::Loop => self.iterations(place, measured),
                Kind::Branch(_) => 1,
            })
            .collect();
        let mut times = vec![0u64; depths.len()];
        for (id, _) in self.graph.nodes() {
            if let Some(place) = self.contexts.of_node(id) {
                times[place] = times[place].saturating_add(time(id));
            }
        }
        // The dearer side of each conditional, from the innermost on: the times of a context are complete once all that is
        // nested in it is added.
        let mut dearer: BTreeMap<Conditional, Place> = BTreeMap::new();
        let mut last = by_depth.len();
        while last > 0 {
            let first = by_depth[..last].partition_point(|&place| depths[place] < depths[by_depth[last - 1]]);
            let mut sides: BTreeMap<Conditional, Vec<(u32, Place)>> = BTreeMap::new();
            for &place in &by_depth[first..last] {
                match (self.contexts.kind(place), self.contexts.outer(place)) {
                    (Kind::Branch(of), outer) => {
                        sides.entry((outer, of.predicate)).or_default().push((of.port, place));
                    }
                    (Kind::Loop, Some(outer)) => {
                        let all = times[place].saturating_mul(iterations[place]);
                        times[outer] = times[outer].saturating_add(all);
                    }
                    (Kind::Loop, None) => {}
                }
            }
            for (of, sides) in sides {
                // Of two that cost the same, that of a predicate that holds.
                let Some(&(_, most)) = sides.iter().max_by_key(|&&(port, place)| (times[place], port)) else {
                    continue;
                };
                dearer.insert(of, most);
                if let Some(outer) = of.0 {
                    times[outer] = times[outer].saturating_add(times[most]);
                }
            }
            last = first;
        }
        let mut runs = vec![0u64; depths.len()];
        for &place in &by_depth {
            let outer = self.contexts.outer(place);
            let around = outer.map_or(1, |outer| runs[outer]);
            runs[place] = match self.contexts.kind(place) {
                Kind::Loop => around.saturating_mul(iterations[place]),
                Kind::Branch(of) if dearer.get(&(outer, of.predicate)) == Some(&place) => around,
                Kind::Branch(_) => 0,
            };
        }
        let of_node = |(id, _)| self.contexts.of_node(id).map_or(1, |place| runs[place]);
        self.graph.nodes().map(of_node).collect()
    }

    /// The iterations of the loops whose conditions were traced, each time that the loop ran, by what names the loop among
    /// others. `ran`: how often a node ran in a step.
    pub fn traced(&self, ran: impl Fn(NodeId) -> u64) -> Vec<((String, usize), u64)> {
        let mut all = Vec::new();
        let mut outermost: Vec<Place> = self.loops.keys().copied().collect();
        outermost.sort_by_key(|&place| (self.contexts.depth(Some(place)), place));
        let mut in_step: HashMap<Place, u64> = HashMap::new();
        for place in outermost {
            let (condition, nodes) = self.loops[&place];
            let entries = match self.contexts.outer(place).and_then(|outer| self.contexts.loop_of(Some(outer))) {
                None => 1,
                Some(around) => in_step.get(&around).copied().unwrap_or(0),
            };
            // The condition is computed once more than the body each time.
            let computed = ran(self.computed(self.graph.node(condition).inputs[0]).node);
            if computed > 0 && entries > 0 {
                let iterations = computed.saturating_sub(entries);
                in_step.insert(place, iterations);
                all.push(((self.graph.node(condition).name.clone(), nodes), iterations / entries));
            }
        }
        all
    }

    fn iterations(&mut self, place: Place, measured: &Measured) -> u64 {
        let Some(&(condition, nodes)) = self.loops.get(&place) else { return 1 };
        self.looks = MAX_LOOKS;
        let counted = self.counted(place, MAX_STEPS);
        let traced = || measured.iterations(&self.graph.node(condition).name, nodes);
        counted.or_else(traced).unwrap_or(ASSUMED)
    }

    /// The iterations of a loop by its condition, if they depend on constants alone.
    fn counted(&mut self, place: Place, steps: u32) -> Option<u64> {
        if let Some(known) = self.counted.get(&place) {
            return *known;
        }
        // Of a loop that depends on its own result nothing is known.
        self.counted.insert(place, None);
        let &(condition, _) = self.loops.get(&place)?;
        let counted = self.holds(place, self.graph.node(condition).inputs[0], steps);
        self.counted.insert(place, counted);
        counted
    }

    /// How often a condition of a loop holds before it fails for the first time.
    fn holds(&mut self, place: Place, condition: Output, steps: u32) -> Option<u64> {
        let (condition, steps) = (self.computed(condition), self.look(steps)?);
        let node = self.graph.node(condition.node);
        let (first, second) = (*node.inputs.first()?, *node.inputs.get(1)?);
        match node.op.name {
            "LogicalAnd" => {
                let both = [first, second].map(|of| self.holds(place, of, steps));
                both.into_iter().flatten().min()
            }
            // A count upwards or downwards: the comparison that does not apply fails at once.
            "Select" | "SelectV2" => {
                let either = [second, *node.inputs.get(2)?].map(|of| self.holds(place, of, steps));
                either[0].zip(either[1]).map(|(one, other)| one.max(other))
            }
            "Less" | "LessEqual" | "Greater" | "GreaterEqual" | "NotEqual" => {
                let comparison = node.op.name;
                if let (Some((begin, step)), Some(limit)) =
                    (self.counter(place, first, steps), self.value(second, steps))
                {
                    return count(comparison, begin, step, limit);
                }
                let turned = match comparison {
                    "Less" => "Greater",
                    "LessEqual" => "GreaterEqual",
                    "Greater" => "Less",
                    "GreaterEqual" => "LessEqual",
                    other => other,
                };
                let (begin, step) = self.counter(place, second, steps)?;
                count(turned, begin, step, self.value(first, steps)?)
            }
            _ => None,
        }
    }

    /// The first value and the step of a counter of a loop.
    fn counter(&mut self, place: Place, output: Output, steps: u32) -> Option<(f64, f64)> {
        let merge = self.computed(output).node;
        let node = self.graph.node(merge);
        let of_output = self.contexts.of_output(self.graph, output);
        let is_own = self.contexts.loop_of(of_output) == Some(place);
        if !is_loop_merge(self.graph, node) || !is_own || node.inputs.len() != 2 {
            return None;
        }
        let role = |input: &&Output, role: Role| self.graph.node(input.node).op.role == role;
        let enter = node.inputs.iter().find(|input| role(input, Role::Enter))?.node;
        let next = node.inputs.iter().find(|input| role(input, Role::NextIteration))?.node;
        let changed = self.computed(self.graph.node(next).inputs[0]);
        let by = self.graph.node(changed.node);
        let (first, second) = (*by.inputs.first()?, *by.inputs.get(1)?);
        let is_counter = |this: &Self, output: Output| {
            let from = this.computed(output);
            let node = this.graph.node(from.node);
            let of = if is_loop_switch(this.graph, node) { this.computed(node.inputs[0]) } else { from };
            of.node == merge
        };
        let step = match by.op.name {
            "Add" | "AddV2" if is_counter(self, first) => self.value(second, steps)?,
            "Add" | "AddV2" if is_counter(self, second) => self.value(first, steps)?,
            "Sub" if is_counter(self, first) => -self.value(second, steps)?,
            _ => return None,
        };
        Some((self.value(self.graph.node(enter).inputs[0], steps)?, step))
    }

    /// A number that the graph determines.
    fn value(&mut self, output: Output, steps: u32) -> Option<f64> {
        let steps = self.look(steps)?;
        if let Some([Some(one)]) = self.shapes.integers(output).as_deref() {
            return Some(*one as f64);
        }
        let node = self.graph.node(output.node);
        let first = node.inputs.first().copied();
        match (node.op.role, node.op.name) {
            (Role::Const, _) => {
                let value = node.attrs.tensor("value").ok().filter(|value| value.shape().elements() == Some(1))?;
                let of_f32 = value.slice::<f32>().ok().map(|one| f64::from(one[0]));
                of_f32.or_else(|| value.slice::<f64>().ok().map(|one| one[0]))
            }
            (Role::Forward | Role::Enter, _) | (_, "EnsureShape" | "Cast") => self.value(first?, steps),
            // The last value of a counter of another loop.
            (Role::Exit, _) => {
                let switch = self.graph.node(first?.node);
                let merge = *switch.inputs.first().filter(|_| is_loop_switch(self.graph, switch))?;
                let place = self.contexts.loop_of(self.contexts.of_node(first?.node))?;
                let (begin, step) = self.counter(place, merge, steps)?;
                Some(begin + step * self.counted(place, steps)? as f64)
            }
            (_, "Minimum") => Some(self.value(first?, steps)?.min(self.value(*node.inputs.get(1)?, steps)?)),
            (_, "Maximum") => Some(self.value(first?, steps)?.max(self.value(*node.inputs.get(1)?, steps)?)),
            _ => None,
        }
    }

    /// The steps that are left after one more node.
    fn look(&mut self, steps: u32) -> Option<u32> {
        self.looks = self.looks.checked_sub(1)?;
        steps.checked_sub(1)
    }

    /// The output that nodes which only pass on bring.
    fn computed(&self, output: Output) -> Output {
        let mut at = output;
        for _ in 0..MAX_STEPS {
            let node = self.graph.node(at.node);
            match node.op.role {
                Role::Forward if node.inputs.len() == node.outputs.len() => at = node.inputs[at.port as usize],
                _ => break,
            }
        }
        at
    }
}

/// How often a comparison of a counter with a limit holds before it fails; `None` if it always holds.
fn count(comparison: &str, begin: f64, step: f64, limit: f64) -> Option<u64> {
    let holds = match comparison {
        "Less" if begin < limit => (step > 0.0).then(|| ((limit - begin) / step).ceil())?,
        "LessEqual" if begin <= limit => (step > 0.0).then(|| ((limit - begin) / step).floor() + 1.0)?,
        "Greater" if begin > limit => (step < 0.0).then(|| ((limit - begin) / step).ceil())?,
        "GreaterEqual" if begin >= limit => (step < 0.0).then(|| ((limit - begin) / step).floor() + 1.0)?,
        "NotEqual" => Some((limit - begin) / step).filter(|steps| *steps >= 0.0 && steps.fract() == 0.0)?,
        _ => 0.0,
    };
    (holds <= MAX_ITERATIONS).then_some(holds as u64)
}

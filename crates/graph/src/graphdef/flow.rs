//! The expansion of branches and loops that are functions into Switch, Merge, Enter and Exit.

use meshtf_tensor::failure::counted;
use meshtf_tensor::{DType, Tensor};

use super::expand::{Answer, Around, Expander, inputs_of, is_handle, refuse};
use super::function::{control, tensor};
use super::proto::{NameAttrList, NodeMessage, Value};
use crate::{Attr, Attrs, FormatError};

/// `DT_BOOL` and `DT_INT32`.
const BOOL: i32 = 10;
const INT32: i32 = 3;

/// The number of concurrent iterations if the loop does not specify it.
const PARALLEL_ITERATIONS: i64 = 10;

/// One side of a conditional.
struct Side {
    args: Vec<String>,
    /// A control input that is alive on this side only.
    pivot: String,
}

impl Expander<'_> {
    pub(super) fn choose_if(
        &mut self,
        node: &NodeMessage,
        then: &NameAttrList,
        other: &NameAttrList,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        if let Some(&Value::Type(ty)) = node.attr.get("Tcond").and_then(|attr| attr.value.as_ref())
            && ty != BOOL
        {
            let ty = super::proto::data_type_name(ty);
            return Err(refuse(&node.name, format!("the condition is {ty}; meshtf takes DT_BOOL")));
        }
        let (mut inputs, pred) = self.first_input(node, around)?;
        let types = self.arg_types(then);
        let args = inputs.split_off(1);
        let [taken, left] = self.divide(node, "", &pred, &args, &types)?;
        let taken = self.side(node, "then", then, taken)?;
        let left = self.side(node, "else", other, left)?;
        self.unite(node, vec![left, taken])
    }

    /// A chain of choices: the first branch or the rest, of the rest the first or the rest, …; a number without a branch
    /// selects the last.
    pub(super) fn choose_case(
        &mut self,
        node: &NodeMessage,
        branches: &[NameAttrList],
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let (mut inputs, mut index) = self.first_input(node, around)?;
        let types = self.arg_types(&branches[0]);
        let mut rest = Side { args: inputs.split_off(1), pivot: control(&index) };
        let mut ends = Vec::with_capacity(branches.len());
        for (i, branch) in branches.iter().enumerate() {
            let name = format!("branch{i}");
            if i + 1 == branches.len() {
                let last = std::mem::replace(&mut rest, Side { args: Vec::new(), pivot: String::new() });
                ends.push(self.side(node, &name, branch, last)?);
                break;
            }
            let number = Attr::Tensor(Tensor::scalar(i as i32));
            let attrs = Attrs::from([("dtype", Attr::Type(DType::I32)), ("value", number)]);
            let number = self.node(
                format!("{}/{name}/number", node.name),
                "Const",
                vec![rest.pivot.clone()],
                &node.device,
                attrs,
            )?;
            let inputs = vec![index.clone(), number];
            let pred =
                self.node(format!("{}/{name}/is_taken", node.name), "Equal", inputs, &node.device, Attrs::default())?;
            // The index is passed on like an argument.
            let mut args = std::mem::take(&mut rest.args);
            args.push(index);
            let mut types = types.clone();
            types.push(0);
            let [mut taken, mut left] = self.divide(node, &format!("{name}/"), &pred, &args, &types)?;
            taken.args.pop();
            index = left.args.pop().expect("just pushed");
            rest = left;
            ends.push(self.side(node, &name, branch, taken)?);
        }
        self.unite(node, ends)
    }

    /// The data inputs of a node; the first of them is available only after everything that the node waits for.
    fn first_input(&mut self, node: &NodeMessage, around: &Around) -> Result<(Vec<String>, String), FormatError> {
        let (inputs, mut before) = inputs_of(node);
        let Some(first) = inputs.first().cloned() else {
            return Err(refuse(&node.name, format!("{} takes at least one input, got 0", node.op)));
        };
        before.extend(around.before.clone());
        if before.is_empty() {
            return Ok((inputs, first));
        }
        before.insert(0, first);
        let first = self.node(format!("{}/start", node.name), "Identity", before, &node.device, Attrs::default())?;
        Ok((inputs, first))
    }

    /// The dtype of each argument of a function that is a handle; 0 for every other argument.
    fn arg_types(&self, call: &NameAttrList) -> Vec<i32> {
        self.signature(call)
            .and_then(|signature| super::function::types(&signature.input_arg, &call.attr).ok())
            .map(|types| types.concat())
            .unwrap_or_default()
    }

    /// Switches values to one side if `pred` is true and to the other if not: `[taken, left]`.
    fn divide(
        &mut self,
        node: &NodeMessage,
        step: &str,
        pred: &str,
        values: &[String],
        types: &[i32],
    ) -> Result<[Side; 2], FormatError> {
        let name = |what: &str| format!("{}/{step}{what}", node.name);
        let at = node.device.as_str();
        let both = vec![pred.to_owned(), pred.to_owned()];
        let switch = self.node(name("switch_pred"), "Switch", both, at, Attrs::default())?;
        let taken = self.node(name("switch_t"), "Identity", vec![tensor(&switch, 1)], at, Attrs::default())?;
        let left = self.node(name("switch_f"), "Identity", vec![switch], at, Attrs::default())?;
        let mut sides = [taken, left].map(|pivot| Side { args: Vec::new(), pivot: control(&pivot) });
        for (i, value) in values.iter().enumerate() {
            // The Switch of a handle requests no device: a handle never leaves its own.
            let at = if types.get(i).is_some_and(|&ty| is_handle(ty)) { "" } else { at };
            let inputs = vec![value.clone(), pred.to_owned()];
            let switch = self.node(name(&format!("switch_{i}")), "Switch", inputs, at, Attrs::default())?;
            sides[0].args.push(tensor(&switch, 1));
            sides[1].args.push(switch);
        }
        Ok(sides)
    }

    fn side(
        &mut self,
        node: &NodeMessage,
        name: &str,
        function: &NameAttrList,
        side: Side,
    ) -> Result<(Answer, String), FormatError> {
        let around = Around { pivot: Some(side.pivot.clone()), before: None };
        let answer = self.inline(node, &format!("{}/{name}", node.name), function, side.args, &around)?;
        Ok((answer, side.pivot))
    }

    /// The merged outputs of the sides, one of which is alive; each side with its pivot.
    fn unite(&mut self, node: &NodeMessage, sides: Vec<(Answer, String)>) -> Result<Answer, FormatError> {
        let types = sides[0].0.types.clone();
        for (side, _) in &sides {
            if side.types != types {
                return Err(refuse(&node.name, "its branches return different numbers or types of values"));
            }
        }
        let mut answer = Answer { tensors: Vec::new(), types, done: Vec::new() };
        for (i, &ty) in answer.types.iter().enumerate() {
            let inputs = sides.iter().map(|(side, _)| side.tensors[i].clone()).collect();
            let at = if is_handle(ty) { "" } else { &node.device };
            answer.tensors.push(self.node(
                format!("{}/merge_{i}", node.name),
                "Merge",
                inputs,
                at,
                Attrs::default(),
            )?);
        }
        // If a side has effects that no output waits for, the side that is alive signals their completion.
        if answer.tensors.is_empty() || sides.iter().any(|(side, _)| !side.done.is_empty()) {
            let mut ends = Vec::new();
            for (side, pivot) in sides {
                let mut inputs = vec![pivot.trim_start_matches('^').to_owned()];
                inputs.extend(side.done);
                let name = format!("{}/done", node.name);
                ends.push(self.node(name, "Identity", inputs, &node.device, Attrs::default())?);
            }
            let merge =
                self.node(format!("{}/merge_done", node.name), "Merge", ends, &node.device, Attrs::default())?;
            answer.done.push(control(&merge));
        }
        Ok(answer)
    }

    pub(super) fn repeat(
        &mut self,
        node: &NodeMessage,
        cond: &NameAttrList,
        body: &NameAttrList,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let (values, mut before) = inputs_of(node);
        let types = self.arg_types(body);
        if types.len() != values.len() {
            let why = format!("its body {} takes {}, got {}", body.name, counted(types.len(), "input"), values.len());
            return Err(refuse(&node.name, why));
        }
        let mut is_fixed = self.handed_back(body, 0, values.len());
        // At least one value must be a loop variable: it provides the pivot of each iteration.
        let round = (0..values.len())
            .find(|&i| !is_fixed[i] && !is_handle(types[i]))
            .or_else(|| (0..values.len()).find(|&i| !is_handle(types[i])))
            .ok_or_else(|| refuse(&node.name, "a loop needs at least one loop variable"))?;
        is_fixed[round] = false;
        before.extend(around.before.clone());
        let goes_on = |expander: &mut Self, heads: &[String]| {
            let around = Around { pivot: Some(control(&heads[round])), before: None };
            let answer = expander.inline(node, &format!("{}/cond", node.name), cond, heads.to_vec(), &around)?;
            if answer.types != [BOOL] {
                return Err(refuse(&node.name, format!("its condition {} must return one DT_BOOL", cond.name)));
            }
            Ok(answer.tensors.into_iter().chain(answer.done).collect())
        };
        let step = |expander: &mut Self, args: Vec<String>, around: &Around| {
            expander.inline(node, &format!("{}/body", node.name), body, args, around)
        };
        let wrong =
            || refuse(&node.name, format!("its body {} must return values of the types that it takes", body.name));
        self.cycle(node, Cycle { values, types, is_fixed, round, before }, goes_on, step, wrong)
    }

    /// A loop over the numbers from the first input on, before the second, in steps of the third.
    pub(super) fn count_through(
        &mut self,
        node: &NodeMessage,
        body: &NameAttrList,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let (mut values, mut before) = inputs_of(node);
        let arg_types = self.arg_types(body);
        if values.len() < 3 || arg_types.first() != Some(&INT32) || arg_types.len() != values.len() - 2 {
            let why = format!(
                "takes the first number, the limit, the step and the inputs of its body {} after a number of DT_INT32",
                body.name
            );
            return Err(refuse(&node.name, why));
        }
        before.extend(around.before.clone());
        // Each number is a scalar; the step leads to the limit.
        let name = |what: &str| format!("{}/{what}", node.name);
        let at = node.device.as_str();
        for (value, what) in values.iter_mut().zip(["first", "limit", "step"]) {
            let attrs = Attrs::from([("shape", Attr::Shape(meshtf_tensor::PartialShape(Some(Vec::new()))))]);
            *value = self.node(name(what), "EnsureShape", vec![value.clone()], at, attrs)?;
        }
        let [first, limit, delta] = [0, 1, 2].map(|i: usize| values[i].clone());
        let mut zero = Attrs::from([("dtype", Attr::Type(DType::I32))]);
        zero.set("value", Attr::Tensor(Tensor::scalar(0i32)));
        let zero = self.node(name("zero"), "Const", around.pivot.iter().cloned().collect(), at, zero)?;
        let mut of = |what: &str, op: &str, one: &str, other: &str| {
            self.node(name(what), op, vec![one.to_owned(), other.to_owned()], at, Attrs::default())
        };
        let up = of("is_up", "Greater", &delta, &zero)?;
        let down = of("is_down", "Less", &delta, &zero)?;
        let below = of("is_below", "Less", &first, &limit)?;
        let above = of("is_above", "Greater", &first, &limit)?;
        let there = of("is_there", "Equal", &first, &limit)?;
        let rises = of("rises", "LogicalAnd", &up, &below)?;
        let falls = of("falls", "LogicalAnd", &down, &above)?;
        let moves = of("moves", "LogicalOr", &rises, &falls)?;
        let is_right = of("is_right", "LogicalOr", &moves, &there)?;
        let mut told = Attrs::from([("dtype", Attr::Type(DType::String))]);
        told.set("value", Attr::Tensor(Tensor::scalar(b"Invalid start/limit/delta:".to_vec())));
        let told = self.node(name("told"), "Const", around.pivot.iter().cloned().collect(), at, told)?;
        let types = [DType::String, DType::I32, DType::I32, DType::I32];
        let attrs = Attrs::from([("T", Attr::Types(types.to_vec()))]);
        let check = self.node(name("check"), "Assert", vec![is_right, told, first, limit, delta], at, attrs)?;
        before.push(control(&check));

        values.insert(3, up);
        let types: Vec<i32> = [INT32, INT32, INT32, BOOL].into_iter().chain(arg_types[1..].iter().copied()).collect();
        let fixed = self.handed_back(body, 1, values.len() - 4);
        let is_fixed = [false, true, true, true].into_iter().chain(fixed).collect();
        let goes_on = |expander: &mut Self, heads: &[String]| {
            let both = vec![heads[0].clone(), heads[1].clone()];
            let less = expander.node(name("cond/less"), "Less", both.clone(), at, Attrs::default())?;
            let more = expander.node(name("cond/more"), "Greater", both, at, Attrs::default())?;
            let chosen = vec![heads[3].clone(), less, more];
            Ok(vec![expander.node(name("cond/goes_on"), "Select", chosen, at, Attrs::default())?])
        };
        let step = |expander: &mut Self, mut args: Vec<String>, around: &Around| {
            let next = vec![args[0].clone(), args[2].clone()];
            let next = expander.node(name("body/next"), "AddV2", next, at, Attrs::default())?;
            let own: Vec<String> = args.drain(1..4).collect();
            let mut answer = expander.inline(node, &name("body"), body, args, around)?;
            answer.tensors.splice(0..0, [next].into_iter().chain(own));
            answer.types.splice(0..0, [INT32, INT32, INT32, BOOL]);
            Ok(answer)
        };
        let wrong =
            || refuse(&node.name, format!("its body {} must return values of the types that it takes", body.name));
        let mut answer = self.cycle(node, Cycle { values, types, is_fixed, round: 0, before }, goes_on, step, wrong)?;
        answer.tensors.drain(..4);
        answer.types.drain(..4);
        Ok(answer)
    }

    /// A loop over values: `goes_on` makes the inputs of its condition, `step` the values of the next iteration. `wrong` refuses
    /// values of other types.
    fn cycle(
        &mut self,
        node: &NodeMessage,
        Cycle { values, types, is_fixed, round, before }: Cycle,
        goes_on: impl FnOnce(&mut Self, &[String]) -> Result<Vec<String>, FormatError>,
        step: impl FnOnce(&mut Self, Vec<String>, &Around) -> Result<Answer, FormatError>,
        wrong: impl FnOnce() -> FormatError,
    ) -> Result<Answer, FormatError> {
        let before = self.gate(&node.name, "start", before, &node.device)?;
        let name = |what: &str, i: usize| format!("{}/{what}_{i}", node.name);
        let home = |i: usize| if is_handle(types[i]) { "" } else { node.device.as_str() };
        let none = Attrs::default;
        // Entry of the loop.
        let mut heads: Vec<String> = Vec::with_capacity(values.len());
        let next: Vec<String> = (0..values.len()).map(|i| self.claim(name("next_iteration", i))).collect();
        for (i, value) in values.iter().enumerate() {
            let attrs = enter(node, is_fixed[i]);
            let inputs = std::iter::once(value.clone()).chain(before.clone()).collect();
            let mut head = self.node(name("enter", i), "Enter", inputs, home(i), attrs)?;
            if !is_fixed[i] {
                head = self.node(name("merge", i), "Merge", vec![head, next[i].clone()], home(i), none())?;
            }
            heads.push(head);
        }
        // The condition.
        let inputs = goes_on(self, &heads)?;
        let pred = self.node(format!("{}/loop_cond", node.name), "LoopCond", inputs, &node.device, none())?;
        // Body of the loop.
        let mut args = heads.clone();
        let mut out = values.clone();
        for i in (0..values.len()).filter(|&i| !is_fixed[i]) {
            let inputs = vec![heads[i].clone(), pred.clone()];
            let switch = self.node(name("switch", i), "Switch", inputs, home(i), none())?;
            args[i] = tensor(&switch, 1);
            out[i] = self.node(name("exit", i), "Exit", vec![switch], home(i), none())?;
        }
        let pivot = vec![args[round].clone()];
        let pivot = control(&self.node(format!("{}/round", node.name), "Identity", pivot, &node.device, none())?);
        // A value that is the same in every iteration also exists in the last, in which the body does not run.
        for i in (0..values.len()).filter(|&i| is_fixed[i]) {
            let inputs = vec![heads[i].clone(), pivot.clone()];
            args[i] = self.node(name("fixed", i), "Identity", inputs, home(i), none())?;
        }
        let answer = step(self, args, &Around { pivot: Some(pivot), before: None })?;
        if answer.types != types {
            return Err(wrong());
        }
        let done = self.gate(&node.name, "done", answer.done, &node.device)?;
        for (i, value) in answer.tensors.into_iter().enumerate().filter(|&(i, _)| !is_fixed[i]) {
            let inputs = std::iter::once(value).chain(done.clone()).collect();
            self.named(next[i].clone(), "NextIteration", inputs, home(i))?;
        }
        Ok(Answer { done: vec![control(&out[round])], tensors: out, types })
    }

    /// Whether a function returns each of `count` arguments from the one at `first` on unchanged, in the order of its results.
    fn handed_back(&self, call: &NameAttrList, first: usize, count: usize) -> Vec<bool> {
        let mut all = vec![false; count];
        let Some(function) = self.function(call) else { return all };
        let Some(signature) = &function.signature else { return all };
        let inputs = signature.input_arg.iter().skip(first);
        for ((is_fixed, input), output) in all.iter_mut().zip(inputs).zip(&signature.output_arg) {
            *is_fixed = function.ret.get(&output.name).is_some_and(|from| *from == input.name);
        }
        all
    }
}

/// The values of a loop, and what it waits for.
struct Cycle {
    values: Vec<String>,
    /// Their dtypes, by number.
    types: Vec<i32>,
    /// Whether each is the same in every iteration.
    is_fixed: Vec<bool>,
    /// One that is not: it provides the pivot of each iteration.
    round: usize,
    before: Vec<String>,
}

fn enter(node: &NodeMessage, is_constant: bool) -> Attrs {
    let parallel = match node.attr.get("parallel_iterations").and_then(|attr| attr.value.as_ref()) {
        Some(&Value::I(n)) if n > 0 => n,
        _ => PARALLEL_ITERATIONS,
    };
    Attrs::from([
        ("frame_name", Attr::Str(node.name.clone().into_bytes())),
        ("is_constant", Attr::Bool(is_constant)),
        ("parallel_iterations", Attr::Int(parallel)),
    ])
}

//! The kernel of deferred values. It runs jobs side by side; the program of each is known when the kernel is compiled, so that
//! there is one kernel for each list of programs. Sizes, strides and numbers come with the launch.
//!
//! The first number is 0. Values are the bits of float32, or 0 and 1 for a bool. No job waits for another, and no thread for
//! another.

#![allow(clippy::needless_range_loop, reason = "loops of a kernel are over numbers that are known when it is compiled")]

use cubecl::prelude::*;

use super::super::bits::{BinaryFunction, ComparisonFunction, UnaryFunction, of_comparison, of_one, of_two};

/// The bits of negative infinity.
const LEAST: u32 = 0xff80_0000;

/// The threads from number `numbers[at]` on, `numbers[at + 1]` of them, compute an element each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    pub at: usize,
    pub steps: Vec<Step>,
    pub fold: Option<Fold>,
    pub outputs: Vec<Output>,
}

/// A value of the program, by the number of its step, that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    pub step: usize,
    pub buffer: usize,
}

/// The last value of the program is summed up, or the largest one found, over a part of the rows of a matrix, of which there
/// are several: `numbers[at..]` has the rows and columns of a matrix, the rows of a part, the parts of a matrix, and the divisor
/// of the sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fold {
    pub at: usize,
    pub is_most: bool,
    pub divides: bool,
    pub output: usize,
}

/// A step of a program. Its operands are the numbers of earlier steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Load(Leaf),
    Number(usize),
    One(UnaryFunction, usize),
    Two(BinaryFunction, usize, usize),
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Div(usize, usize),
    Compare(ComparisonFunction, usize, usize),
    And(usize, usize),
    Or(usize, usize),
    Not(usize),
    /// The second if the first is true, else the third.
    Select(usize, usize, usize),
    /// 1.0 if it is true, else 0.0.
    ToFloat(usize),
    /// A coordinate: the position over `numbers[at]`, modulo the next number, times the next one, plus the next one.
    Coordinate(usize),
    /// The element of a row that a step has the number of, as a float; `numbers[at]` has the distance of elements.
    Pick {
        row: Leaf,
        index: usize,
        at: usize,
    },
    /// The sum of products of a row and a column; `numbers[at..]` has their length, and the distances of their elements.
    Product {
        row: Leaf,
        column: Leaf,
        at: usize,
    },
}

/// An element of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leaf {
    pub buffer: usize,
    pub layout: Layout,
    /// Where `numbers` has the condition on which it exists; otherwise it is 0. A coordinate, that is the position over the
    /// first number, modulo the second, plus the third, is at least the fourth and below the fifth number.
    pub guard: Option<usize>,
}

/// The location of an element in its buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// At the position.
    Direct,
    /// `numbers[at..]` has the location of the first element, then a size and a distance for each dimension, the innermost
    /// first.
    Strided { at: usize, rank: usize },
}

#[cube(launch_unchecked)]
pub fn jobs_kernel<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    outputs: &mut Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    #[comptime] jobs: Vec<Job>,
) {
    #[unroll]
    for i in 0..comptime![jobs.len()] {
        let job = comptime![jobs[i].clone()];
        let first = usize::cast_from(numbers[comptime![job.at]]);
        let count = usize::cast_from(numbers[comptime![job.at + 1]]);
        if ABSOLUTE_POS >= first && ABSOLUTE_POS < first + count {
            run(inputs, outputs, numbers, ABSOLUTE_POS - first, job);
        }
    }
}

#[cube]
fn run<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    outputs: &mut Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    at: usize,
    #[comptime] job: Job,
) {
    if comptime![job.fold.is_some()] {
        let fold = comptime![job.fold.clone().unwrap()];
        let rows = usize::cast_from(numbers[comptime![fold.at]]);
        let columns = usize::cast_from(numbers[comptime![fold.at + 1]]);
        let part = usize::cast_from(numbers[comptime![fold.at + 2]]);
        let parts = usize::cast_from(numbers[comptime![fold.at + 3]]);
        let column = at % columns;
        let matrix = at / columns / parts;
        let begin = at / columns % parts * part;
        let end = select(begin + part < rows, begin + part, rows);
        let mut all = Vector::<u32, N>::new(comptime![if fold.is_most { LEAST } else { 0u32 }]);
        for row in begin..end {
            let place = (matrix * rows + row) * columns + column;
            let values = computed::<N>(inputs, numbers, place, comptime![job.steps.clone()]);
            let value = values[comptime![job.steps.len() - 1]];
            if comptime![fold.is_most] {
                all = of_two(all, value, comptime![BinaryFunction::Maximum]);
            } else {
                all = bits(float(all) + float(value));
            }
            store::<N>(outputs, &values, place, comptime![job.outputs.clone()]);
        }
        if comptime![fold.divides] {
            all = bits(float(all) / float(Vector::<u32, N>::new(numbers[comptime![fold.at + 4]])));
        }
        let buffer = outputs.index_mut(comptime![fold.output]);
        buffer[at] = all;
    } else {
        let values = computed::<N>(inputs, numbers, at, comptime![job.steps.clone()]);
        store::<N>(outputs, &values, at, comptime![job.outputs.clone()]);
    }
}

#[cube]
fn store<N: Size>(
    outputs: &mut Sequence<Box<[Vector<u32, N>]>>,
    values: &Sequence<Vector<u32, N>>,
    at: usize,
    #[comptime] stored: Vec<Output>,
) {
    #[unroll]
    for i in 0..comptime![stored.len()] {
        let output = comptime![stored[i].clone()];
        let buffer = outputs.index_mut(comptime![output.buffer]);
        buffer[at] = values[comptime![output.step]];
    }
}

/// The values of all steps of a program at a position.
#[cube]
fn computed<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    at: usize,
    #[comptime] steps: Vec<Step>,
) -> Sequence<Vector<u32, N>> {
    let mut values = Sequence::<Vector<u32, N>>::new();
    #[unroll]
    for i in 0..comptime![steps.len()] {
        let value = one_step::<N>(inputs, numbers, &values, at, comptime![steps[i].clone()]);
        values.push(value);
    }
    values
}

#[cube]
fn one_step<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    values: &Sequence<Vector<u32, N>>,
    at: usize,
    #[comptime] step: Step,
) -> Vector<u32, N> {
    match comptime![step] {
        Step::Load(leaf) => load::<N>(inputs, numbers, at, leaf),
        Step::Number(number) => Vector::<u32, N>::new(numbers[number]),
        Step::One(function, x) => of_one(values[x], function),
        Step::Two(function, x, y) => of_two(values[x], own(numbers, values[y]), function),
        Step::Add(x, y) => settled(numbers, float(values[x]) + float(own(numbers, values[y]))),
        Step::Sub(x, y) => settled(numbers, float(values[x]) - float(own(numbers, values[y]))),
        Step::Mul(x, y) => settled(numbers, float(values[x]) * float(own(numbers, values[y]))),
        Step::Div(x, y) => settled(numbers, float(values[x]) / float(own(numbers, values[y]))),
        Step::Compare(comparison, x, y) => {
            let holds = of_comparison(values[x], values[y], comparison);
            select_many(holds, Vector::new(1u32), Vector::new(0u32))
        }
        Step::And(x, y) => values[x] & values[y],
        Step::Or(x, y) => values[x] | values[y],
        Step::Not(x) => values[x] ^ Vector::new(1u32),
        Step::Select(holds, yes, no) => {
            select_many(values[holds].not_equal(&Vector::new(0u32)), values[yes], values[no])
        }
        Step::ToFloat(x) => {
            select_many(values[x].not_equal(&Vector::new(0u32)), bits(Vector::new(1.0f32)), Vector::new(0u32))
        }
        Step::Coordinate(first) => {
            let own = u32::cast_from(at) / numbers[first] % numbers[comptime![first + 1]];
            let coordinate = own * numbers[comptime![first + 2]] + numbers[comptime![first + 3]];
            bits(Vector::<f32, N>::new(f32::cast_from(coordinate)))
        }
        Step::Pick { row, index, at: place } => {
            let first = located(numbers, at, comptime![row.layout.clone()]);
            let own = u32::cast_from(float(values[index]).extract(0usize));
            let buffer = inputs.index(comptime![row.buffer]);
            buffer[first + usize::cast_from(own * numbers[place])]
        }
        Step::Product { row, column, at: place } => product::<N>(inputs, numbers, at, row, column, place),
    }
}

#[cube]
fn float<N: Size>(bits: Vector<u32, N>) -> Vector<f32, N> {
    Vector::<f32, N>::reinterpret(bits)
}

#[cube]
fn bits<N: Size>(float: Vector<f32, N>) -> Vector<u32, N> {
    Vector::<u32, N>::reinterpret(float)
}

/// The bits of the result of an operation, of which the compiler of a shader must not make another with the next one: it may
/// round two operations once, or take (x + y) - y to be x. The first number is 0, which it does not know.
#[cube]
fn settled<N: Size>(numbers: &Sequence<u32>, result: Vector<f32, N>) -> Vector<u32, N> {
    bits(result) ^ Vector::new(numbers[0])
}

/// A number of which the compiler of a shader does not know whether it is another one: it may take x - x to be 0 even if x is
/// infinite.
#[cube]
fn own<N: Size>(numbers: &Sequence<u32>, value: Vector<u32, N>) -> Vector<u32, N> {
    value ^ Vector::new(numbers[0])
}

#[cube]
fn load<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    at: usize,
    #[comptime] leaf: Leaf,
) -> Vector<u32, N> {
    let address = located(numbers, at, comptime![leaf.layout.clone()]);
    let buffer = inputs.index(comptime![leaf.buffer]);
    let mut value = Vector::<u32, N>::new(0u32);
    if comptime![leaf.guard.is_some()] {
        let guard = comptime![leaf.guard.unwrap_or(0)];
        let coordinate =
            u32::cast_from(at) / numbers[guard] % numbers[comptime![guard + 1]] + numbers[comptime![guard + 2]];
        let exists = coordinate >= numbers[comptime![guard + 3]] && coordinate < numbers[comptime![guard + 4]];
        if exists {
            value = buffer[address];
        }
    } else {
        value = buffer[address];
    }
    value
}

/// The location of the element of a position.
#[cube]
fn located(numbers: &Sequence<u32>, at: usize, #[comptime] layout: Layout) -> usize {
    match comptime![layout] {
        Layout::Direct => at,
        Layout::Strided { at: first, rank } => {
            let mut address = numbers[first];
            let mut rest = u32::cast_from(at);
            #[unroll]
            for i in 0..rank {
                let size = numbers[comptime![first + 1 + 2 * i]];
                let distance = numbers[comptime![first + 2 + 2 * i]];
                if comptime![i + 1 == rank] {
                    address += rest * distance;
                } else {
                    address += rest % size * distance;
                    rest /= size;
                }
            }
            usize::cast_from(address)
        }
    }
}

#[cube]
fn product<N: Size>(
    inputs: &Sequence<Box<[Vector<u32, N>]>>,
    numbers: &Sequence<u32>,
    at: usize,
    #[comptime] row: Leaf,
    #[comptime] column: Leaf,
    #[comptime] place: usize,
) -> Vector<u32, N> {
    let along_row = located(numbers, at, comptime![row.layout.clone()]);
    let along_column = located(numbers, at, comptime![column.layout.clone()]);
    let xs = inputs.index(comptime![row.buffer]);
    let ys = inputs.index(comptime![column.buffer]);
    let count = usize::cast_from(numbers[place]);
    let x_distance = usize::cast_from(numbers[comptime![place + 1]]);
    let y_distance = usize::cast_from(numbers[comptime![place + 2]]);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for k in 0..count {
        sum += float(xs[along_row + k * x_distance]) * float(ys[along_column + k * y_distance]);
    }
    bits(sum)
}

//! Examples that arrive batch by batch.

use meshtf_tensor::failure::Code;

use super::*;

/// Ten examples of 4 bytes in each batch, numbered from 0.
fn batch(first: i32) -> Vec<Tensor> {
    vec![Tensor::vector((first..first + 10).collect::<Vec<i32>>()), Tensor::vector(vec![b"x".to_vec(); 10])]
}

fn arrived(keep: usize, most_bytes: usize) -> Arrived {
    Arrived::new(vec![(DType::I32, vec![]), (DType::String, vec![])], keep, most_bytes)
}

fn taken(arrived: &mut Arrived, indices: &[usize]) -> Result<Vec<i32>> {
    arrived.take(1, indices)?;
    arrived.take(0, indices)?.slice::<i32>().map(<[i32]>::to_vec)
}

#[test]
fn examples_are_taken_in_any_order_and_kept_for_a_while() {
    let mut arrived = arrived(10, usize::MAX);
    for first in [0, 10, 20] {
        arrived.push(batch(first), 0).unwrap();
    }
    assert_eq!(arrived.count(), 30);
    assert_eq!(taken(&mut arrived, &[17, 2]).unwrap(), [17, 2]);
    for first in [10, 20, 0] {
        let all: Vec<usize> = (first..first + 10).collect();
        taken(&mut arrived, &all).unwrap();
    }
    // Of 30 that were all taken, ten stay.
    assert_eq!(taken(&mut arrived, &[29, 20]).unwrap(), [29, 20]);
    let gone = taken(&mut arrived, &[9]).unwrap_err();
    assert_eq!(
        (gone.code, gone.message.as_str()),
        (Code::FailedPrecondition, "example 9 of the iterator was read before, and is not kept")
    );
    assert!(taken(&mut arrived, &[30]).is_err(), "it has not arrived");
}

#[test]
fn examples_of_a_slow_worker_wait_up_to_a_limit() {
    let each: usize = batch(0).iter().map(Tensor::heap_bytes).sum();
    let mut arrived = arrived(0, 2 * each);
    // A worker takes every second batch at once, and the other one takes none.
    for first in 0..3 {
        arrived.push(batch(first * 10), 0).unwrap();
        if first % 2 == 1 {
            let all: Vec<usize> = (first as usize * 10..first as usize * 10 + 10).collect();
            taken(&mut arrived, &all).unwrap();
        }
    }
    let refused = arrived.push(batch(30), 0).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!(refused.message.contains("a worker that has not taken example 0 yet"), "{}", refused.message);
    // As soon as the slow one has taken its first batch, there is room.
    taken(&mut arrived, &(0..10).collect::<Vec<_>>()).unwrap();
    arrived.push(batch(30), 0).unwrap();
    // A batch that is larger than the limit is taken if it is alone.
    let mut arrived = super::Arrived::new(vec![(DType::I32, vec![])], 0, 1);
    arrived.push(vec![Tensor::vector((0..100).collect::<Vec<i32>>())], 0).unwrap();
    assert_eq!(arrived.take(0, &(0..100).collect::<Vec<_>>()).unwrap().dims(), [100]);
    arrived.push(vec![Tensor::vector((0..100).collect::<Vec<i32>>())], 0).unwrap();
}

#[test]
fn examples_before_the_origin_are_not_kept_and_other_batches_are_refused() {
    let mut arrived = arrived(0, 1);
    for first in [0, 10, 20] {
        arrived.push(batch(first), 25).unwrap();
    }
    assert_eq!(taken(&mut arrived, &[25, 29]).unwrap(), [25, 29]);
    assert!(taken(&mut arrived, &[3]).is_err());
    let mut other = batch(30);
    other.truncate(1);
    assert!(arrived.push(other, 0).unwrap_err().message.contains("differs from the first one"));
}

//! The examples in Rust do what they say.

#[allow(dead_code)]
#[path = "../../examples/classifier.rs"]
mod classifier;

#[tokio::test(flavor = "multi_thread")]
async fn the_classifier_learns_on_two_tasks() {
    let accuracy = classifier::accuracy().await.unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}

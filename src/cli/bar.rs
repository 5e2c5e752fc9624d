//! The progress bar on stderr.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::paint::Paint;

/// A bar for so many steps, hidden unless `is_shown`, followed by these fields of indicatif's templates. `{rate}` is the rate, a
/// whole number.
pub(super) fn bar(steps: u64, is_shown: bool, fields: &str) -> ProgressBar {
    if !is_shown {
        return ProgressBar::hidden();
    }
    // The bar takes the remaining width.
    let bar = if Paint::stderr().is_on() { "{wide_bar:.cyan}" } else { "{wide_bar}" };
    let style = ProgressStyle::with_template(&format!("{bar} {{pos}}/{{len}} {fields}"));
    let rate = |state: &ProgressState, to: &mut dyn std::fmt::Write| {
        let _ = write!(to, "{:.0}/s", state.per_sec());
    };
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("rate", rate);
    ProgressBar::new(steps).with_style(style)
}

//! Tables on stdout, and how times, names and counts are written in them.

use comfy_table::{ContentArrangement, Table, presets};

/// A table without lines, as wide as the terminal lets it be.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    arranged(ContentArrangement::Dynamic, header, rows)
}

/// A table without lines, each row of which is one line, however long.
pub(super) fn wide_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    arranged(ContentArrangement::Disabled, header, rows)
}

fn arranged(how: ContentArrangement, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(how).set_header(header).add_rows(rows);
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The end of a PeerId, which is what tells two apart.
pub(super) fn short_peer(peer: &str) -> String {
    match peer.char_indices().rev().nth(7) {
        Some((at, _)) if at > 0 => format!("…{}", &peer[at..]),
        _ => peer.to_owned(),
    }
}

/// `3 min 12 s`.
pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// A number that was fetched, with five digits: `0.12346`.
pub(super) fn number(value: f64) -> String {
    let places = match value.abs() {
        size if value.fract() == 0.0 && size < 1e15 => return format!("{value}"),
        size if !(1e-4..1e15).contains(&size) => return format!("{value:.4e}"),
        size => (4 - size.log10().floor() as i32).max(0) as usize,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetched_number_has_five_digits() {
        let cases = [
            (0.0, "0"),
            (12.0, "12"),
            (0.123456, "0.12346"),
            (1.5, "1.5000"),
            (12345.678, "12346"),
            (0.00001234, "1.2340e-5"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ];
        for (value, want) in cases {
            assert_eq!(number(value), want);
        }
    }
}

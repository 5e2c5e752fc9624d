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

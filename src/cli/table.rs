//! Tables on stdout, and the forms of times, names and counts in them.

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
pub(super) use meshtf::doctor::duration;

use meshtf::protocol::status::PeerStatus;

use super::paint::{Paint, Tone};

/// A row of a table; its tone, if it stands out.
pub(super) struct TableRow {
    cells: Vec<String>,
    tone: Option<Tone>,
}

impl TableRow {
    pub fn toned(tone: Tone, cells: Vec<String>) -> TableRow {
        TableRow { cells, tone: Some(tone) }
    }
}

impl From<Vec<String>> for TableRow {
    fn from(cells: Vec<String>) -> TableRow {
        TableRow { cells, tone: None }
    }
}

/// A table without lines, at most as wide as the terminal.
pub(super) fn table<R: Into<TableRow>>(paint: Paint, header: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    arranged(ContentArrangement::Dynamic, paint, header, rows)
}

/// A table without lines, each row of which is one line of any length.
pub(super) fn wide_table<R: Into<TableRow>>(
    paint: Paint,
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    arranged(ContentArrangement::Disabled, paint, header, rows)
}

fn arranged<R: Into<TableRow>>(
    how: ContentArrangement,
    paint: Paint,
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(how);
    // A terminal that does not know its size, as in programs that drive others, has no limit.
    if table.width() == Some(0) {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    if paint.is_on() {
        table.enforce_styling().set_header(header.iter().map(|text| Cell::new(text).add_attribute(Attribute::Bold)));
    } else {
        table.set_header(header);
    }
    for row in rows {
        let TableRow { cells, tone } = row.into();
        let tone = tone.filter(|_| paint.is_on());
        table.add_row(cells.into_iter().map(|text| styled(Cell::new(text), tone)));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn styled(cell: Cell, tone: Option<Tone>) -> Cell {
    match tone {
        None => cell,
        Some(Tone::Bad) => cell.fg(Color::Red),
        Some(Tone::Warning) => cell.fg(Color::Yellow),
        Some(Tone::Good) => cell.fg(Color::Green),
        Some(Tone::Accent) => cell.fg(Color::Cyan),
        Some(Tone::Strong) => cell.add_attribute(Attribute::Bold),
        Some(Tone::Dim) => cell.add_attribute(Attribute::Dim),
    }
}

/// A peer without a task: `client …AbCdEfGh`, or `spare …`.
pub(super) fn taskless(peer: &PeerStatus) -> String {
    let kind = if peer.is_spare { "spare" } else { "client" };
    format!("{kind} {}", short_peer(peer.peer.as_str()))
}

/// The end of a PeerId, which distinguishes peers.
pub(super) fn short_peer(peer: &str) -> String {
    match peer.char_indices().rev().nth(7) {
        Some((at, _)) if at > 0 => format!("…{}", &peer[at..]),
        _ => peer.to_owned(),
    }
}

/// The address of a peer, for people: of a Unix socket at most one end has a name, a long one without information.
pub(super) fn place(address: &str) -> &str {
    if address.starts_with("/unix/") { "Unix socket" } else { address }
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

/// A rate per second in a table that is refreshed: `1234`, `112.5`, `0.3`.
pub(super) fn rate(per_second: f64) -> String {
    if per_second >= 100.0 { format!("{per_second:.0}") } else { format!("{per_second:.1}") }
}

/// A rate per second: `1234`, `9.5`, `0.25`, two digits of a small one.
pub(super) fn per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 10.0 || rate <= 0.0 => format!("{rate:.0}"),
        rate => format!("{rate:.*}", (1.0 - rate.log10().floor()).clamp(0.0, 9.0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_rates_have_digits() {
        let rates = [812_871.4, 150.0, 9.54, 0.25, 0.083, 0.0].map(per_second);
        assert_eq!(rates, ["812871", "150", "9.5", "0.25", "0.083", "0"]);
    }

    #[test]
    fn a_unix_socket_is_called_that() {
        let shown = ["/unix/@", "/unix/@meshtf-12D3KooWAbCdEfGh", "/ip4/10.0.0.7/tcp/4001"].map(place);
        assert_eq!(shown, ["Unix socket", "Unix socket", "/ip4/10.0.0.7/tcp/4001"]);
    }

    #[test]
    fn headings_and_what_stands_out_are_painted_and_aligned_alike() {
        let rows = || {
            [
                TableRow::from(vec!["a".to_owned(), "fine".to_owned()]),
                TableRow::toned(Tone::Bad, vec!["bbbb".into(), "lost".into()]),
            ]
        };
        let plain = table(Paint::OFF, &["TASK", "STATE"], rows());
        assert_eq!(plain, " TASK  STATE\n a     fine\n bbbb  lost");
        let painted = table(Paint::ON, &["TASK", "STATE"], rows());
        let lines: Vec<&str> = painted.lines().collect();
        assert!(
            lines[0].contains("\x1b[1m") && !lines[1].contains('\x1b') && lines[2].contains("\x1b["),
            "{painted:?}"
        );
        assert_eq!(
            anstream::adapter::strip_str(&painted).to_string().lines().map(str::trim_end).collect::<Vec<_>>(),
            plain.lines().collect::<Vec<_>>()
        );
    }

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

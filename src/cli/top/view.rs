//! The display of `meshtf top`, and the actions of its keys. Draws on any of ratatui's backends.

use meshtf::protocol::runs::RunStatus;
use meshtf_tensor::device::Task;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::super::table::duration;
use super::log::Log;
use super::rows::{Panel, Whole};
use super::session::Key;

/// Cells of the bar that shows a share.
const BAR: usize = 8;
/// Cells between two columns.
const SPACE: u16 = 1;
/// Lines that a page of a log is.
const PAGE: usize = 20;
/// Maximum number of lines of problems and remedies.
const MAX_WRONG: usize = 4;
const KEYS: &str = "Tab table  s sort  ↑↓ row  Enter alone  l log  / filter  Esc all  ? help  q quit";
const SESSION_KEYS: &str = "Esc all  ? help  q quit";
const LOG_KEYS: &str = "↑↓ scroll  Esc all  ? help  q quit";
/// The keys and their meaning.
const HELP: [(&str, &str); 12] = [
    ("Tab, →", "the next table; Shift-Tab or ←: the one before"),
    ("s", "the next order of the table, which its title names"),
    ("↑ ↓, k j", "the row before, the next row; in a log, scroll"),
    ("Enter", "the session of the row alone, with curves, plan and traced step; of another row, its task alone"),
    ("l", "the log of the row's process: tasks, sessions, failed runs, limits"),
    ("/", "a filter: only rows that contain the text, in letters of any case; Enter keeps it, Esc drops it"),
    ("Esc", "all again: without the filter, every task and table"),
    ("?", "this help; any key ends it"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("BUSY", "the share of the time in which a device had something to do, and its last reports"),
    ("MEMORY", "of a CPU, that of its process; of a GPU, allocated by its backend; and its last reports"),
];
/// Maximum number of letters of a filter.
const MAX_FILTER: usize = 64;

/// The action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    On,
    /// Also query the nodes at once: another session is shown.
    Look,
    Quit,
}

/// The selection.
#[derive(Debug, Default)]
pub struct View {
    part: Panel,
    /// The order of each table: a number in [`Panel::orders`].
    orders: [usize; 5],
    /// The selected row of the selected table.
    row: usize,
    /// The only task that is shown.
    only: Option<Task>,
    /// The session that is shown.
    session: Option<Key>,
    /// The task whose log is shown, and how many lines it is scrolled up.
    log: Option<(Task, usize)>,
    /// The text that rows must contain; empty: any.
    filter: String,
    /// The filter is being typed.
    is_typing: bool,
    is_help: bool,
}

impl View {
    fn order(&self, part: Panel) -> usize {
        self.orders[part as usize]
    }

    /// The session that is shown.
    pub fn session(&self) -> Option<&Key> {
        self.session.as_ref()
    }

    /// The task whose log is shown.
    pub fn log(&self) -> Option<&Task> {
        self.log.as_ref().map(|(task, _)| task)
    }

    /// The rows of a table that are shown.
    fn rows(&self, part: Panel, whole: &Whole) -> Vec<super::rows::Row> {
        let mut rows = part.rows(whole, self.order(part), self.only.as_ref());
        rows.retain(|row| self.filter.is_empty() || row.contains(&self.filter));
        rows
    }

    /// Handles a key of a filter that is being typed.
    fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => self.filter.push(letter),
            _ => {}
        }
        self.row = 0;
    }

    /// Handles a key that was pressed while this was shown.
    pub fn key(&mut self, key: KeyEvent, whole: &Whole) -> Next {
        let step = |view: &mut View, by: usize| {
            let all = Panel::all(whole);
            let own = all.iter().position(|part| *part == view.part).unwrap_or(0);
            view.part = all[(own + by) % all.len()];
            view.row = 0;
        };
        let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if std::mem::take(&mut self.is_help) && !is_interrupt {
            return Next::On;
        }
        if self.is_typing && !is_interrupt {
            self.typed(key.code);
            return Next::On;
        }
        if let (Some((_, up)), false) = (&mut self.log, is_interrupt) {
            let most = whole.log.as_ref().map_or(0, Log::len);
            match key.code {
                KeyCode::Up | KeyCode::Char('k') => *up = most.min(*up + 1),
                KeyCode::Down | KeyCode::Char('j') => *up = most.min(*up).saturating_sub(1),
                KeyCode::PageUp => *up = most.min(*up + PAGE),
                KeyCode::PageDown => *up = most.min(*up).saturating_sub(PAGE),
                KeyCode::Esc => self.log = None,
                KeyCode::Char('?') => self.is_help = true,
                KeyCode::Char('q') => return Next::Quit,
                _ => {}
            }
            return Next::On;
        }
        let rows = self.rows(self.part, whole);
        let last = rows.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            _ if is_interrupt => return Next::Quit,
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Esc if self.session.is_some() => self.session = None,
            // The tables are not shown.
            _ if self.session.is_some() => {}
            KeyCode::Tab | KeyCode::Right => step(self, 1),
            KeyCode::BackTab | KeyCode::Left => step(self, Panel::all(whole).len() - 1),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('l') => {
                let row = rows.get(self.row.min(last));
                if let Some(task) = row.map(|row| row.task.clone()).or_else(|| self.only.clone()) {
                    self.log = Some((task, 0));
                    return Next::Look;
                }
            }
            KeyCode::Char('s') => {
                let order = &mut self.orders[self.part as usize];
                *order = (*order + 1) % self.part.orders().len();
                self.row = 0;
            }
            KeyCode::Down | KeyCode::Char('j') => self.row = last.min(self.row + 1),
            KeyCode::Up | KeyCode::Char('k') => self.row = last.min(self.row).saturating_sub(1),
            KeyCode::Enter => {
                let row = rows.get(self.row.min(last));
                if let Some((task, id)) = row.and_then(|row| Some((row.task.clone(), row.session?))) {
                    self.session = Some((task, id));
                    return Next::Look;
                }
                self.only = rows.get(self.row.min(last)).map(|row| row.task.clone());
                self.row = 0;
            }
            KeyCode::Esc => (self.only, self.row, self.filter) = (None, 0, String::new()),
            _ => {}
        }
        Next::On
    }

    /// Draws everything.
    pub fn draw(&self, frame: &mut Frame<'_>, whole: &Whole) {
        if self.is_help {
            return draw_help(frame);
        }
        if let Some((task, up)) = &self.log {
            return draw_log(frame, task, *up, whole);
        }
        if let Some(key) = &self.session {
            return draw_session(frame, key, whole);
        }
        let all = Panel::all(whole);
        let wrong = whole.wrong();
        let lines = wrong.len().min(MAX_WRONG) as u16;
        let mut heights = vec![Constraint::Length(1), Constraint::Length(lines)];
        // The selected table gets the most room, and none less than a line.
        heights.extend(all.iter().map(|&part| Constraint::Fill(if part == self.part { 3 } else { 2 })));
        heights.push(Constraint::Length(1));
        let areas = Layout::vertical(heights).split(frame.area());
        let title = self.only.as_ref().map_or_else(|| whole.summary(), |task| format!("{} alone", task.short()));
        let title = vec![Span::from("meshtf top  ").style(Modifier::BOLD), Span::from(title)];
        frame.render_widget(Line::from(title), areas[0]);
        let wrong: Vec<Line<'_>> = wrong.into_iter().take(MAX_WRONG).map(Line::from).collect();
        frame.render_widget(Paragraph::new(wrong).style(Color::Red), areas[1]);
        for (part, area) in all.iter().zip(areas.iter().skip(2)) {
            self.draw_part(frame, *area, *part, whole);
        }
        let below = match (self.is_typing, &self.filter[..]) {
            (true, filter) => Line::from(format!("/{filter}█  Enter keep  Esc drop")),
            (false, "") => Line::from(KEYS).style(Modifier::DIM),
            (false, filter) => Line::from(format!("filter: {filter}  Esc drop  / change  ? help")),
        };
        frame.render_widget(below, areas[2 + all.len()]);
    }

    fn draw_part(&self, frame: &mut Frame<'_>, area: Rect, part: Panel, whole: &Whole) {
        let rows = self.rows(part, whole);
        let is_chosen = part == self.part;
        let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let title = format!("{} ({}), by {}", part.title(), rows.len(), part.orders()[self.order(part)]);
        let style = if is_chosen { Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD) } else { Style::new() };
        frame.render_widget(Line::from(title).style(style), above);
        let chosen = self.row.min(rows.len().saturating_sub(1));
        let columns = columns(part, &rows, below.width);
        let shown = rows.iter().map(|row| {
            Row::new(columns.iter().map(|&(i, _)| match (&row.cells[i], row.share) {
                (text, Some(share)) if i == 2 => Cell::from(busy(text, share, &row.trails[0])),
                (text, Some(_)) if i == 3 => Cell::from(format!("{text:>8} {}", row.trails[1])),
                (text, _) => Cell::from(text.as_str()),
            }))
        });
        let header = Row::new(columns.iter().map(|&(i, _)| part.header()[i])).style(Modifier::DIM);
        let widths = columns.iter().map(|&(_, width)| Constraint::Length(width));
        let table = Table::new(shown, widths).column_spacing(SPACE).header(header);
        let table = table.row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::new().with_selected(is_chosen.then_some(chosen));
        frame.render_stateful_widget(table, below, &mut state);
    }
}

/// The columns for which there is room, and their widths: names are whole, and the least important columns are left out first.
fn columns(part: Panel, rows: &[super::rows::Row], room: u16) -> Vec<(usize, u16)> {
    let longest = |i: usize| {
        let cells = rows.iter().map(|row| row.cells[i].chars().count());
        cells.chain([part.header()[i].chars().count()]).max().unwrap_or_default()
    };
    let wanted = part.widths();
    let mut columns: Vec<(usize, u16)> = (0..wanted.len()).map(|i| (i, wanted[i].for_content(longest(i)))).collect();
    let taken = |columns: &[(usize, u16)]| columns.iter().map(|(_, width)| u32::from(width + SPACE)).sum::<u32>();
    let room = u32::from(room) + u32::from(SPACE);
    for &spared in part.spared() {
        if taken(&columns) > room {
            columns.retain(|&(i, _)| i != spared);
        }
    }
    // Columns that were cut take the room that is left, then all columns but the last, so that the table is as wide as the
    // screen.
    let mut left = room.saturating_sub(taken(&columns));
    for (i, width) in &mut columns {
        let more = (longest(*i) as u32).saturating_sub(u32::from(*width)).min(left);
        *width += more as u16;
        left -= more;
    }
    let each = left / (columns.len() as u32 - 1).max(1);
    let but_last = columns.len() - 1;
    columns[..but_last].iter_mut().for_each(|(_, width)| *width += each as u16);
    columns
}

/// A session alone.
fn draw_session(frame: &mut Frame<'_>, key: &Key, whole: &Whole) {
    let heights = [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
    let [above, middle, below] = Layout::vertical(heights).areas(frame.area());
    let (task, id) = key;
    let told = whole.told.iter().filter(|told| told.task == *task).find_map(|told| told.status.as_ref().ok());
    let session = told.and_then(|status| status.sessions.items.iter().find(|session| session.id == *id));
    let rate =
        session.map_or_else(String::new, |one| format!(", {:.1} steps/s, {} steps", one.steps_per_second, one.steps));
    let runs = whole.told.iter().flat_map(|told| &told.runs);
    let run = runs.into_iter().find(|run| run.report.session == *id);
    let run = run.map_or_else(String::new, |run| {
        let RunStatus { report, .. } = run;
        let left = report.left_ms.filter(|_| run.end().is_none());
        let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left / 1000)));
        let end = run.end().map_or_else(String::new, |end| format!(", {end}"));
        format!("{}: step {} of {}{left}{end}, ", report.title, report.step, report.of)
    });
    let title = Span::from(format!("{run}session {id} of {}{rate}", task.short()));
    frame.render_widget(Line::from(vec![Span::from("meshtf top  ").style(Modifier::BOLD), title]), above);
    if let Some(looked) = whole.looked.as_ref().filter(|looked| looked.key == *key) {
        looked.draw(frame, middle);
    }
    frame.render_widget(Line::from(SESSION_KEYS).style(Modifier::DIM), below);
}

/// The log of a process alone.
fn draw_log(frame: &mut Frame<'_>, task: &Task, up: usize, whole: &Whole) {
    let heights = [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
    let [above, middle, below] = Layout::vertical(heights).areas(frame.area());
    let title = Span::from(format!("log of {}", task.short()));
    frame.render_widget(Line::from(vec![Span::from("meshtf top  ").style(Modifier::BOLD), title]), above);
    if let Some(log) = whole.log.as_ref().filter(|log| log.task == *task) {
        log.draw(frame, middle, up);
    }
    frame.render_widget(Line::from(LOG_KEYS).style(Modifier::DIM), below);
}

/// The keys and their meaning.
fn draw_help(frame: &mut Frame<'_>) {
    let wide = HELP.iter().map(|(keys, _)| keys.chars().count()).max().unwrap_or_default() + 2;
    let line = |(keys, meaning): &(&'static str, &'static str)| {
        Line::from(vec![Span::from(format!("{keys:wide$}")).style(Modifier::BOLD), Span::from(*meaning)])
    };
    let title = Line::from(Span::from("meshtf top: keys").style(Modifier::BOLD));
    let lines: Vec<Line<'_>> = [title, Line::default()].into_iter().chain(HELP.iter().map(line)).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), frame.area());
}

/// ` 42 % ███▍`
fn busy(text: &str, share: f64, trail: &str) -> Line<'static> {
    let eighths = (share.clamp(0.0, 1.0) * (8 * BAR) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
    let color = if share > 0.8 { Color::Red } else { Color::Green };
    let gap = " ".repeat(BAR + 1 - bar.chars().count().min(BAR));
    let trail = Span::from(format!("{gap}{trail}")).style(Modifier::DIM);
    Line::from(vec![Span::from(format!("{text} ")), Span::from(bar).style(color), trail])
}

#[cfg(test)]
mod tests;

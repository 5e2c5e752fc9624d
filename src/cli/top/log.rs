//! The log of a process in `meshtf top`: the events of its node.

use std::collections::VecDeque;
use std::time::Duration;

use meshtf::Client;
use meshtf::node::Node;
use meshtf::protocol::event::{Event, Noted};
use meshtf_tensor::device::Task;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use tokio::time::timeout;

/// Maximum number of events that are kept: as many as a node keeps.
const MAX_KEPT: usize = 1024;
/// Maximum number of answers in a row: one has 128 events at most.
const MAX_ANSWERS: usize = 9;

/// The events of one node, or the reason why there are none.
#[derive(Clone)]
pub struct Log {
    pub task: Task,
    events: VecDeque<Noted>,
    failure: Option<String>,
}

impl Log {
    /// The log of a task with the events since `before`, if that is of the same task.
    pub async fn after(before: Option<Log>, node: &Node, task: Task, limit: Duration) -> Log {
        let before = before.filter(|before| before.task == task);
        let mut log = before.unwrap_or_else(|| Log { task, events: VecDeque::new(), failure: None });
        for _ in 0..MAX_ANSWERS {
            let after = log.events.back().map_or(0, |last| last.number);
            let told = match timeout(limit, node.events_of(Some(&log.task), after, false)).await {
                Ok(told) => told.map_err(|failure| failure.message),
                Err(_) => Err("it does not answer".to_owned()),
            };
            log.failure = told.as_ref().err().cloned();
            match told {
                Ok(events) if !events.is_empty() => log.add(events),
                _ => break,
            }
        }
        log
    }

    fn add(&mut self, events: Vec<Noted>) {
        self.events.extend(events);
        let more = self.events.len().saturating_sub(MAX_KEPT);
        self.events.drain(..more);
    }

    /// Draws the last events, `up` lines before the end.
    pub fn draw(&self, frame: &mut Frame<'_>, area: Rect, up: usize) {
        let room = usize::from(area.height);
        let end = self.events.len().saturating_sub(up).max(room.min(self.events.len()));
        let shown = self.events.iter().skip(end.saturating_sub(room)).take(room.min(end));
        let mut lines: Vec<Line<'_>> = shown.map(line).collect();
        if let Some(why) = &self.failure {
            lines.truncate(room.saturating_sub(1));
            lines.push(Line::from(why.as_str()).style(Color::Red));
        } else if lines.is_empty() {
            lines.push(Line::from("It has no events yet.").style(Modifier::DIM));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// The number of lines that can be scrolled up.
    pub fn len(&self) -> usize {
        self.events.len()
    }
}

/// `18:20:03Z session 1a2b is open`
fn line(noted: &Noted) -> Line<'static> {
    let seconds = noted.unix_ms / 1000 % 86400;
    let time = format!("{:02}:{:02}:{:02}Z ", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let style = match &noted.event {
        Event::RunFailed { .. } if !noted.event.is_usual_end() => Style::new().fg(Color::Red),
        Event::TaskLost { task: Some(_), .. } | Event::LinkDown { .. } | Event::LimitReached { .. } => {
            Style::new().fg(Color::Yellow)
        }
        _ => Style::new(),
    };
    let time = Span::from(time).style(Modifier::DIM);
    Line::from(vec![time, Span::from(noted.event.to_string()).style(style)])
}

#[cfg(test)]
impl Log {
    /// A log of limits that were reached, one a second.
    pub fn of_limits(task: Task, count: u64) -> Log {
        let noted = |number: u64| Noted {
            number,
            unix_ms: 1000 * number,
            event: Event::LimitReached { what: format!("limit {number}") },
        };
        Log { task, events: (1..=count).map(noted).collect(), failure: None }
    }
}

//! Dates and times in the fields of a table.

use chrono::format::{Parsed, StrftimeItems, parse};
use chrono::{Datelike, NaiveDateTime, NaiveTime, Timelike};

use super::DatePart;

/// A date and a time, as the field has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Date {
    local: NaiveDateTime,
    /// Seconds that the local time is ahead of UTC.
    offset: i64,
}

/// A date and perhaps a time and its offset from UTC, as ISO 8601 or the given form has them.
pub(super) fn date(text: &str, format: Option<&str>) -> Option<Date> {
    let Some(format) = format else {
        let forms = ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d"];
        let (text, offset) = without_offset(text)?;
        let text = text.replacen('T', " ", 1);
        return forms.iter().find_map(|form| of(&text, form)).map(|date| Date { offset, ..date });
    };
    of(text, format)
}

fn of(text: &str, format: &str) -> Option<Date> {
    let mut parsed = Parsed::new();
    parse(&mut parsed, text, StrftimeItems::new(format)).ok()?;
    let offset = parsed.offset().unwrap_or(0);
    if parsed.timestamp().is_some() {
        let local = parsed.to_naive_datetime_with_offset(offset).ok()?;
        return Some(Date { local, offset: offset.into() });
    }
    let local = day(&parsed)?.and_time(time(&parsed)?);
    Some(Date { local, offset: offset.into() })
}

/// The day. One without a day is the first of its month, one without a month the first of its year; a time alone is of 1970.
fn day(parsed: &Parsed) -> Option<chrono::NaiveDate> {
    let has_no_date = parsed.year().is_none()
        && parsed.year_mod_100().is_none()
        && parsed.isoyear().is_none()
        && parsed.month().is_none()
        && parsed.day().is_none();
    let first_day = |parsed: &Parsed| -> Option<Parsed> {
        let mut parsed = parsed.clone();
        parsed.set_day(1).ok()?;
        Some(parsed)
    };
    let first_month = |parsed: &Parsed| -> Option<Parsed> {
        let mut parsed = first_day(parsed)?;
        parsed.set_month(1).ok()?;
        Some(parsed)
    };
    let first_year = |parsed: &Parsed| -> Option<Parsed> {
        let mut parsed = first_month(parsed)?;
        parsed.set_year(1970).ok()?;
        Some(parsed)
    };
    let day = |parsed: Option<Parsed>| parsed?.to_naive_date().ok();
    let known = parsed.to_naive_date().ok();
    let complete = || day(first_day(parsed)).or_else(|| day(first_month(parsed)));
    known.or_else(complete).or_else(|| day(first_year(parsed).filter(|_| has_no_date)))
}

/// The time: midnight without an hour, and the full hour without minutes.
fn time(parsed: &Parsed) -> Option<NaiveTime> {
    let full = || {
        let mut parsed = parsed.clone();
        parsed.set_minute(0).ok()?;
        parsed.to_naive_time().ok()
    };
    let midnight = || (parsed.hour_mod_12().is_none() && parsed.minute().is_none()).then_some(NaiveTime::MIN);
    parsed.to_naive_time().ok().or_else(full).or_else(midnight)
}

/// A time of ISO 8601 without its offset from UTC, and the offset in seconds: `Z`, `+02`, `+0200` or `+02:00`.
fn without_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(text) = text.strip_suffix('Z') {
        return Some((text, 0));
    }
    // A sign behind the date is that of an offset.
    let Some(at) = text.rfind(['+', '-']).filter(|&at| text[..at].contains(':')) else { return Some((text, 0)) };
    let mut parsed = Parsed::new();
    parse(&mut parsed, &text[at..], StrftimeItems::new("%#z")).ok()?;
    Some((text[..at].trim_end(), parsed.offset()?.into()))
}

/// A part of a date as its field has it; seconds are those of UTC.
pub(super) fn number_of(date: Date, part: DatePart) -> f64 {
    let Date { local, offset } = date;
    match part {
        DatePart::Year => f64::from(local.year()),
        DatePart::Month => f64::from(local.month()),
        DatePart::Day => f64::from(local.day()),
        DatePart::DayOfYear => f64::from(local.ordinal()),
        DatePart::DayOfWeek => f64::from(local.weekday().num_days_from_monday()),
        DatePart::Hour => f64::from(local.hour()),
        DatePart::Minute => f64::from(local.minute()),
        DatePart::Seconds => (local.and_utc().timestamp() - offset) as f64,
    }
}

/// A date of this form, or of ISO 8601 without one, as `2026-05-31 12:30:00`; `None` if the field is none.
pub fn iso_date(field: &str, format: Option<&str>) -> Option<String> {
    Some(date(field, format)?.local.format("%Y-%m-%d %H:%M:%S").to_string())
}

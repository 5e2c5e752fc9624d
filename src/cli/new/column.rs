//! The columns of a table: the kinds of their fields, and how their numbers and dates are written.

use std::collections::BTreeSet;

use meshtf_train::data::{is_missing, iso_date};

/// The most classes.
pub(super) const MAX_CLASSES: usize = 1000;

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// 1234.5
    Plain,
    /// 1,234.5
    Thousands,
    /// 1234,5
    Comma,
    /// 1.234,5
    CommaThousands,
}

impl Style {
    /// In the order in which they are preferred where commas separate the fields, and where another character does.
    const AFTER_COMMA: [Style; 4] = [Style::Plain, Style::Thousands, Style::Comma, Style::CommaThousands];
    const OTHERWISE: [Style; 4] = [Style::Plain, Style::Comma, Style::CommaThousands, Style::Thousands];

    /// The one in which the most of these columns are numbers, among those in which all of `required` are.
    pub fn of(columns: &[&Column], required: &[&Column], delimiter: char) -> Style {
        let order = if delimiter == ',' { Style::AFTER_COMMA } else { Style::OTHERWISE };
        let count = |style: Style| columns.iter().filter(|column| column.is_number_in(style)).count();
        let fits = |style: &Style| required.iter().all(|column| column.is_number_in(*style));
        let most = order.into_iter().filter(fits).map(count).max().unwrap_or(0);
        order.into_iter().filter(fits).find(|&style| count(style) == most).unwrap_or(Style::Plain)
    }

    /// Its options of a table, as members of JSON after others.
    pub fn members(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Thousands => ", \"thousands\": \",\"",
            Style::Comma => ", \"decimal\": \",\"",
            Style::CommaThousands => ", \"decimal\": \",\", \"thousands\": \".\"",
        }
    }

    /// Whether a field is a number that is written in this way.
    fn reads(self, field: &str) -> bool {
        let (mark, decimal) = match self {
            Style::Plain => return is_finite(field),
            Style::Comma => return !field.contains('.') && is_finite(&field.replacen(',', ".", 1)),
            Style::Thousands => (',', '.'),
            Style::CommaThousands => ('.', ','),
        };
        match (field.contains(mark), self) {
            (true, _) => is_grouped(field, mark, decimal),
            (false, Style::Thousands) => Style::Plain.reads(field),
            (false, _) => Style::Comma.reads(field),
        }
    }
}

fn is_finite(field: &str) -> bool {
    field.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether a field is a number with a mark before each three digits of its whole part: 1,234,567.5.
fn is_grouped(field: &str, mark: char, decimal: char) -> bool {
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let field = field.strip_prefix(['-', '+']).unwrap_or(field);
    let (whole, fraction) = field.split_once(decimal).unwrap_or((field, ""));
    let mut groups = whole.split(mark);
    let is_first = groups.next().is_some_and(|first| (1..=3).contains(&first.len()) && are_digits(first));
    is_first && are_digits(fraction) && groups.all(|group| group.len() == 3 && are_digits(group))
}

/// Whether a field is a number in any way of writing, or a date.
pub(super) fn is_value(field: &str) -> bool {
    is_amount(field) || is_date(field)
}

/// Whether a field is a number in any way of writing.
pub(super) fn is_amount(field: &str) -> bool {
    let field = without_percent(field);
    Style::AFTER_COMMA.iter().any(|style| style.reads(field))
}

fn without_percent(field: &str) -> &str {
    field.strip_suffix('%').map_or(field, str::trim_end)
}

fn is_date(field: &str) -> bool {
    may_be_date(field) && FORMS.iter().any(|form| iso_date(field, *form).is_some())
}

/// The forms of dates that are tried: ISO 8601, and those of `date_format`.
const FORMS: [Option<&str>; 11] = [
    None,
    Some("%d.%m.%Y"),
    Some("%d.%m.%Y %H:%M"),
    Some("%d.%m.%Y %H:%M:%S"),
    Some("%Y/%m/%d"),
    Some("%Y/%m/%d %H:%M"),
    Some("%Y/%m/%d %H:%M:%S"),
    Some("%d/%m/%Y"),
    Some("%d/%m/%Y %H:%M"),
    Some("%m/%d/%Y"),
    Some("%m/%d/%Y %H:%M"),
];

/// Whether it is worth the trial: a day, a month and a year of four digits.
fn may_be_date(field: &str) -> bool {
    let has_digit = field.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let is_long = has_digit && (8..=35).contains(&field.len()) && field.contains(['-', '.', '/']);
    is_long && field.split(|letter: char| !letter.is_ascii_digit()).any(|part| part.len() == 4)
}

/// The form of a table's dates: the one that fits the most columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    place: usize,
    /// Whether a column is of no other form.
    is_sure: bool,
}

impl Form {
    pub fn of(columns: &[Column]) -> Form {
        let count = |form: usize| columns.iter().filter(|column| column.is_date_in(form)).count();
        let most = (0..FORMS.len()).map(count).max().unwrap_or(0);
        let place = (0..FORMS.len()).find(|&form| count(form) == most).unwrap_or(0);
        let is_sure = columns.iter().any(|column| column.is_date_in(place) && !column.is_of_two_forms());
        Form { place, is_sure }
    }

    /// As of `strftime`; `None` for ISO 8601.
    pub fn format(self) -> Option<&'static str> {
        FORMS[self.place]
    }
}

/// The kinds of fields of a column.
#[derive(Debug, Default)]
pub(super) struct Column {
    pub name: String,
    /// The numbers, true and false among them, by the way in which they are written.
    numbers: [usize; 4],
    /// The dates, by their forms.
    dates: [usize; FORMS.len()],
    filled: usize,
    pub whole: usize,
    pub missing: usize,
    /// The different fields, up to one more than there may be classes.
    pub different: BTreeSet<String>,
    /// Whether each field is the one before plus 1.
    counts: bool,
    last: Option<i64>,
    /// The first and the last field that are not missing; of dates, as ISO 8601 writes them.
    pub ends: Option<(String, String)>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Text,
    Number,
    Date,
}

impl Column {
    pub fn new(name: &str) -> Column {
        Column { name: name.to_owned(), counts: true, ..Column::default() }
    }

    pub fn add(&mut self, field: &str) {
        if is_missing(field) {
            self.missing += 1;
            return;
        }
        self.filled += 1;
        let amount = without_percent(field);
        let is_truth = field.eq_ignore_ascii_case("true") || field.eq_ignore_ascii_case("false");
        // A whole number is the same in all.
        let same = (!amount.contains(['.', ','])).then(|| is_truth || is_finite(amount));
        for style in Style::AFTER_COMMA {
            self.numbers[style as usize] += usize::from(same.unwrap_or_else(|| style.reads(amount)));
        }
        if may_be_date(field) {
            for (count, form) in self.dates.iter_mut().zip(FORMS) {
                *count += usize::from(iso_date(field, form).is_some());
            }
        }
        let whole = field.parse::<i64>().ok();
        self.whole += usize::from(whole.is_some());
        self.counts &= match (self.last, whole) {
            (Some(last), Some(own)) => last.checked_add(1) == Some(own),
            (None, own) => own.is_some(),
            _ => false,
        };
        self.last = whole;
        match &mut self.ends {
            Some((_, last)) => field.clone_into(last),
            None => self.ends = Some((field.to_owned(), field.to_owned())),
        }
        if self.different.len() <= MAX_CLASSES && !self.different.contains(field) {
            self.different.insert(field.to_owned());
        }
    }

    /// Decides its kind, in a table whose dates are of this form. Its numbers may be written in any way.
    pub fn decide(&mut self, form: Form) {
        let is_number = Style::AFTER_COMMA.iter().any(|style| self.is_number_in(*style));
        let is_date = self.is_date_in(form.place) && (form.is_sure || !self.is_of_two_forms());
        self.kind = match (is_number, is_date) {
            (true, _) => Kind::Number,
            (_, true) => Kind::Date,
            _ => Kind::Text,
        };
        let Some(format) = form.format().filter(|_| self.kind == Kind::Date) else { return };
        let iso = |field: &str| {
            let mut date = iso_date(field, Some(format)).unwrap_or_default();
            if !format.contains("%H") {
                date.truncate("2026-05-31".len());
            }
            date
        };
        self.different = self.different.iter().map(|field| iso(field)).collect();
        self.ends = self.ends.take().map(|(first, last)| (iso(&first), iso(&last)));
    }

    /// Its kind where numbers are written in this way.
    pub fn read_in(&mut self, style: Style) {
        if self.kind != Kind::Date {
            self.kind = if self.is_number_in(style) { Kind::Number } else { Kind::Text };
        }
    }

    fn is_number_in(&self, style: Style) -> bool {
        self.filled > 0 && self.numbers[style as usize] == self.filled
    }

    fn is_date_in(&self, form: usize) -> bool {
        self.filled > 0 && self.dates[form] == self.filled
    }

    /// Whether all of its dates may be of the day and the month in either order.
    fn is_of_two_forms(&self) -> bool {
        let fitting = (0..FORMS.len()).filter(|&form| self.is_date_in(form)).count();
        fitting > 1 && self.ends.as_ref().is_some_and(|(first, _)| first.contains('/'))
    }

    /// The reason why a column of text is none of numbers or dates, although its fields look like them.
    pub fn remark(&self) -> Option<String> {
        let example = self.ends.as_ref().map_or("", |(first, _)| first.as_str());
        let is_amount = Style::AFTER_COMMA.iter().any(|style| self.is_number_in(*style));
        let is_date = (0..FORMS.len()).any(|form| self.is_date_in(form));
        match self.kind {
            Kind::Text if is_amount => {
                Some(format!("its numbers, such as {example}, are written in another way than those of other columns"))
            }
            Kind::Text if is_date && self.is_of_two_forms() => Some(format!(
                "its dates, such as {example}, have the day or the month first: add it with \"dates\" and \"date_format\""
            )),
            Kind::Text if is_date => {
                Some(format!("its dates, such as {example}, have another form than those of other columns"))
            }
            _ => None,
        }
    }

    /// Whether it only numbers the lines.
    pub fn is_count(&self) -> bool {
        self.counts && self.filled > 2
    }

    pub fn filled(&self) -> usize {
        self.filled
    }

    pub fn is_number(&self) -> bool {
        self.kind == Kind::Number
    }

    pub fn is_date(&self) -> bool {
        self.kind == Kind::Date
    }

    /// The categories of a column of text, with that of missing fields.
    pub fn categories(&self) -> usize {
        self.different.len() + usize::from(self.missing > 0)
    }
}

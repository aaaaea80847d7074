//! Summary of a sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::{View, timestamp};
use crate::event::Kind;
use crate::text::Text;

/// Maximum rows of each table.
const ROWS_MAX: usize = 10;
/// Maximum distinct texts of a table that are counted.
const DISTINCT_MAX: usize = 10_000;

/// Summary of the events of one sandbox.
#[derive(Debug, Default)]
pub struct Summary {
    /// How `hutch audit list` names the sandbox.
    sandbox: String,
    first: u64,
    last: u64,
    kinds: BTreeMap<Kind, (u64, u64)>,
    /// Subjects by table, with the number of events, and of those that were refused.
    tables: BTreeMap<&'static str, Table>,
}

/// A table of a summary.
#[derive(Debug, Default)]
struct Table {
    kinds: BTreeSet<Kind>,
    rows: BTreeMap<String, (u64, u64)>,
    /// Not every text is a row.
    is_full: bool,
}

impl Summary {
    /// Returns an empty summary of a sandbox.
    pub fn of(sandbox: &str) -> Summary {
        Summary { sandbox: sandbox.to_owned(), ..Summary::default() }
    }

    /// Takes an event.
    pub fn add(&mut self, view: &View) {
        let Some(kind) = view.kind() else { return };
        self.first = if self.first == 0 { view.time } else { self.first.min(view.time) };
        self.last = self.last.max(view.time);
        let denied = u64::from(view.is_denied());
        let count = self.kinds.entry(kind).or_default();
        *count = (count.0 + 1, count.1 + denied);
        if view.is_end() {
            // Its beginning is counted.
            return;
        }
        let (table, subject) = match kind {
            Kind::Http if view.actor.user.name.is_some() => ("Requests", view.subject()),
            Kind::Connection | Kind::Http => ("Destinations", view.destination()),
            Kind::Dns => ("Names", view.query.hostname.clone()),
            Kind::Exec if view.activity_id == 1 => {
                let command = view.process.cmd_line.as_deref().unwrap_or("?");
                ("Commands", format!("{command} (by {})", view.user()))
            }
            Kind::Api => ("Callers", format!("{}: {}", view.user(), view.api.operation)),
            Kind::Credential => ("Credentials", view.subject()),
            Kind::Finding => ("Findings", view.subject()),
            Kind::Lifecycle => ("Containers", view.subject()),
            Kind::File => ("Files", view.subject()),
            Kind::Approval => ("Approvals", view.subject()),
            Kind::Exec | Kind::Log => return,
        };
        let table = self.tables.entry(table).or_default();
        table.kinds.insert(kind);
        if table.rows.len() >= DISTINCT_MAX && !table.rows.contains_key(&subject) {
            table.is_full = true;
            return;
        }
        let row = table.rows.entry(subject).or_default();
        *row = (row.0 + 1, row.1 + denied);
    }

    /// Returns true if no event was taken.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Tables for people: what happened most, and what was refused.
impl fmt::Display for Summary {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "From {} to {}", timestamp(self.first), timestamp(self.last))?;
        let mut counts = String::new();
        for (kind, (count, denied)) in &self.kinds {
            write!(counts, "{}{} {count}", if counts.is_empty() { "" } else { ", " }, kind.as_str())?;
            if *denied > 0 {
                write!(counts, " ({denied} denied)")?;
            }
        }
        writeln!(to, "Events: {counts}")?;
        for (name, table) in &self.tables {
            writeln!(to, "\n{name}:")?;
            let mut sorted: Vec<_> = table.rows.iter().collect();
            sorted.sort_by_key(|(subject, (count, denied))| (u64::MAX - denied, u64::MAX - count, *subject));
            for (subject, (count, denied)) in sorted.iter().take(ROWS_MAX) {
                let denied = if *denied > 0 { format!("{denied} denied") } else { String::new() };
                writeln!(to, "  {count:>6} {denied:<12} {}", Text::long(subject).as_str())?;
            }
            if sorted.len() > ROWS_MAX {
                let (more, least) = (sorted.len() - ROWS_MAX, if table.is_full { "at least " } else { "" });
                write!(to, "  … and {least}{more} more, see `hutch audit list --sandbox {}", self.sandbox)?;
                table.kinds.iter().try_for_each(|kind| write!(to, " --kind {}", kind.as_str()))?;
                writeln!(to, "`")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_says_that_a_list_is_cut_and_how_to_see_the_rest() {
        let mut summary = Summary::of("team/box");
        for number in 0..13 {
            let event = format!(
                r#"{{"time":1,"metadata":{{"event_code":"dns"}},"query":{{"hostname":"h{number}.example"}}}}"#
            );
            summary.add(&View::parse(event.as_bytes()));
        }
        let text = summary.to_string();
        let rest = "  … and 3 more, see `hutch audit list --sandbox team/box --kind dns`\n";
        assert!(text.ends_with(rest), "{text}");
        assert_eq!(text.matches(".example").count(), ROWS_MAX);
    }
}

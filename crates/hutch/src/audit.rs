//! `hutch audit`: reads the audit log of `hutch up`, or of the gateway of a cluster.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use hutch_audit::export::{Destination, ExportOptions, Exporter};
use hutch_audit::{Entry, Filter, PublicKey, Reader, Selector, Summary, View, is_name, verify};

use crate::cli::{
    AuditArguments, AuditCommand, AuditExportArguments, AuditListArguments, AuditOutput, AuditSelection,
    AuditShowArguments, AuditVerifyArguments,
};
use crate::runtime::{log, runtime};
use crate::signals;

/// Interval at which further records are looked for.
const POLL: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) fn main(arguments: &AuditArguments) -> ExitCode {
    log("warn,hutch=info");
    let folder = arguments.data_dir.join("audit");
    let done = match &arguments.command {
        AuditCommand::List(list) => print(&folder, list, false),
        AuditCommand::Follow(list) => print(&folder, list, true),
        AuditCommand::Show(show) => summarize(&folder, show),
        AuditCommand::Verify(how) => check(&folder, how),
        AuditCommand::Export(export) => send(&folder, export),
    };
    match done {
        Ok(code) => code,
        // The program that reads the output has ended.
        Err(error) if is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch audit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `true` if the program that reads the output has ended.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn exists(folder: &Path) -> anyhow::Result<()> {
    folder.read_dir().map(drop).with_context(|| {
        let folder = folder.display();
        format!(
            "no audit log in {folder}: `hutch up` writes one unless it has --audit off; --data-dir must be that of `hutch up`, \
             or of `hutch egress --cluster`"
        )
    })
}

impl AuditSelection {
    fn filter(&self, folder: &Path) -> anyhow::Result<Filter> {
        let sandbox =
            self.sandbox.as_deref().map(|name| selector(folder, name, &self.namespace)).transpose()?;
        Ok(Filter {
            sandbox,
            since: self.since.map(milliseconds),
            until: self.until.map(milliseconds),
            kinds: self.kind.clone(),
            user: self.user.clone(),
            denied: self.denied,
            writes: self.writes,
        })
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the next record, or reports a line that is damaged.
fn next(reader: &mut Reader) -> anyhow::Result<Option<Entry>> {
    while let Some(entry) = reader.read()? {
        if entry.record.is_some() {
            return Ok(Some(entry));
        }
        eprintln!("hutch audit: {}:{}: the line is damaged", entry.segment, entry.number);
    }
    Ok(None)
}

fn print(folder: &Path, arguments: &AuditListArguments, follow: bool) -> anyhow::Result<ExitCode> {
    exists(folder)?;
    let selection = &arguments.selection;
    let filter = selection.filter(folder)?;
    let mut reader = if follow { Reader::durable(folder, 0) } else { Reader::new(folder, 0) };
    if let Some(since) = selection.since {
        reader.skip_older(since)?;
    }
    let mut is_known = false;
    let mut output = io::BufWriter::new(io::stdout().lock());
    loop {
        while let Some(entry) = next(&mut reader)? {
            let view = View::parse(entry.event());
            is_known |= filter.sandbox.as_ref().is_none_or(|sandbox| sandbox.selects(&view));
            if !filter.selects(&view) {
                continue;
            }
            match arguments.output {
                AuditOutput::Lines => writeln!(output, "{view}")?,
                AuditOutput::Json => {
                    output.write_all(entry.event())?;
                    output.write_all(b"\n")?;
                }
            }
        }
        output.flush()?;
        match &filter.sandbox {
            _ if follow => std::thread::sleep(POLL),
            Some(sandbox) if !is_known => bail!(unknown(&shown(sandbox))),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn unknown(sandbox: &str) -> String {
    format!("no event is about the Sandbox {sandbox}; `hutch audit list` names all")
}

/// Returns a Sandbox as events name it. The log names the Sandboxes of a claim.
fn selector(folder: &Path, name: &str, namespace: &str) -> anyhow::Result<Selector> {
    let mut selector = parsed(name, namespace);
    if let Selector::Claim(..) = selector {
        let mut reader = Reader::new(folder, 0);
        while let Some(entry) = reader.read()? {
            selector.learn(&View::parse(entry.event()));
        }
    }
    Ok(selector)
}

fn parsed(name: &str, namespace: &str) -> Selector {
    let is_uid = name.len() == 36 && name.bytes().filter(|byte| *byte == b'-').count() == 4;
    let full = |name: &str| match name.contains('/') {
        true => name.to_owned(),
        false => format!("{namespace}/{name}"),
    };
    match name.split_once('/') {
        None if is_uid => Selector::Uid(name.to_owned()),
        Some(("sandbox", name)) => Selector::Sandbox(full(name)),
        Some(("claim", name)) => Selector::Claim(full(name), BTreeSet::new()),
        _ => Selector::Sandbox(full(name)),
    }
}

/// Returns a Sandbox as `--sandbox` takes it.
fn shown(selector: &Selector) -> String {
    match selector {
        Selector::Uid(name) | Selector::Sandbox(name) => name.clone(),
        Selector::Claim(name, _) => format!("claim/{name}"),
    }
}

fn summarize(folder: &Path, arguments: &AuditShowArguments) -> anyhow::Result<ExitCode> {
    exists(folder)?;
    let selector = selector(folder, &arguments.sandbox, &arguments.namespace)?;
    let name = shown(&selector);
    let (mut reader, mut summary) = (Reader::new(folder, 0), Summary::of(&name));
    while let Some(entry) = next(&mut reader)? {
        let view = View::parse(entry.event());
        if selector.selects(&view) {
            summary.add(&view);
        }
    }
    if summary.is_empty() {
        bail!(unknown(&name));
    }
    write!(io::stdout().lock(), "Sandbox {name}\n{summary}")?;
    Ok(ExitCode::SUCCESS)
}

fn check(folder: &Path, arguments: &AuditVerifyArguments) -> anyhow::Result<ExitCode> {
    exists(folder)?;
    let key = arguments.key.as_deref().map(PublicKey::read).transpose().context("--key")?;
    let report = verify(folder, key, arguments.head.as_deref())?;
    for fault in &report.faults {
        println!("{fault}");
    }
    if report.more > 0 {
        println!("and {} more", report.more);
    }
    let faults = report.faults.len() as u64 + report.more;
    println!(
        "{} records in {} segments, from {} to {}; signed up to {}, {} not signed yet; {faults} faults",
        report.records,
        report.segments,
        report.first,
        report.last,
        report.signed,
        report.unsigned()
    );
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn send(folder: &Path, arguments: &AuditExportArguments) -> anyhow::Result<ExitCode> {
    // An exporter beside a writer may start first; it waits.
    if !arguments.follow {
        exists(folder)?;
    }
    let Some(to) = &arguments.to else {
        let mut reader = Reader::new(folder, 0);
        let mut output = io::BufWriter::new(io::stdout().lock());
        while let Some(entry) = next(&mut reader)? {
            output.write_all(&entry.line)?;
            output.write_all(b"\n")?;
        }
        output.flush()?;
        return Ok(ExitCode::SUCCESS);
    };
    if !is_name(&arguments.name) {
        bail!("--name {:?} must be letters, digits, '-' and '_'", arguments.name);
    }
    let (sent, refused) = runtime()?.block_on(export(folder, to, arguments))?;
    match refused {
        0 => println!("sent up to record {sent}"),
        _ => println!(
            "sent up to record {sent}; the receiver has refused {refused} records of this name so far"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the last record that was sent, and the number of those that the receiver has refused.
async fn export(
    folder: &Path,
    to: &Destination,
    arguments: &AuditExportArguments,
) -> anyhow::Result<(u64, u64)> {
    let read = |flag: &'static str, path: &Option<PathBuf>| {
        let read = path.as_ref().map(std::fs::read).transpose();
        read.with_context(|| format!("{flag} {}", path.as_deref().unwrap_or(Path::new("")).display()))
    };
    let headers = read("--header-file", &arguments.header_file)?.map(String::from_utf8).transpose();
    let options = ExportOptions {
        authorities: read("--ca-file", &arguments.ca_file)?,
        secret: read("--secret-file", &arguments.secret_file)?,
        headers: headers.context("--header-file")?,
    };
    let stopped = signals::to_stop()?;
    if let Err(error) = exists(folder) {
        tracing::info!(error = format!("{error:#}"), "waiting for the audit log");
    }
    while exists(folder).is_err() {
        tokio::select! {
            () = stopped.wait() => return Ok((0, 0)),
            () = tokio::time::sleep(POLL) => {}
        }
    }
    let mut exporter = Exporter::new(folder, &arguments.name, to, &options, arguments.follow)?;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        stopped.wait().await;
        let _ = stop.send(true);
        // A receiver of the end of this task would never end.
        std::future::pending::<()>().await;
    });
    exporter.run(stopping).await?;
    Ok((exporter.sent(), exporter.refused()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_has_a_namespace_or_is_a_uid_or_is_that_of_a_claim() {
        let of = |name: &str| parsed(name, "team");
        let sandbox = |name: &str| Selector::Sandbox(name.to_owned());
        let claim = |name: &str| Selector::Claim(name.to_owned(), BTreeSet::new());
        assert_eq!(of("a"), sandbox("team/a"));
        assert_eq!(of("other/a"), sandbox("other/a"));
        assert_eq!(of("sandbox/a"), sandbox("team/a"));
        assert_eq!(of("sandbox/other/a"), sandbox("other/a"));
        assert_eq!(of("claim/a"), claim("team/a"));
        let uid = "0b1c1f0e-5b1f-4c57-9f0a-6d3b8c1d2e3f";
        assert_eq!(of(uid), Selector::Uid(uid.to_owned()));
    }
}

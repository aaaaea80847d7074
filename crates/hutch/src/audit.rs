//! `hutch audit`: reads the audit log of `hutch up`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use hutch_audit::export::{Destination, ExportOptions, Exporter};
use hutch_audit::{Entry, Filter, PublicKey, Reader, Summary, View, is_name, verify};

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

fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn exists(folder: &Path) -> anyhow::Result<()> {
    let entries = folder.read_dir().with_context(|| format!("no audit log in {}", folder.display()));
    entries.map(drop).context("--data-dir must be the data folder of a `hutch up` with --audit")
}

impl AuditSelection {
    fn filter(&self) -> Filter {
        let since = self.since.map(|since| milliseconds(SystemTime::now() - since));
        Filter { sandbox: self.sandbox.clone(), since, kinds: self.kind.clone(), denied: self.denied }
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
    let filter = arguments.selection.filter();
    let mut reader = if follow { Reader::durable(folder, 0) } else { Reader::new(folder, 0) };
    if let Some(since) = arguments.selection.since {
        reader.skip_older(SystemTime::now() - since)?;
    }
    let mut output = io::BufWriter::new(io::stdout().lock());
    loop {
        while let Some(entry) = next(&mut reader)? {
            let view = View::parse(entry.event());
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
        if !follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(POLL);
    }
}

/// Returns a Sandbox as events name it.
fn sandbox(arguments: &AuditShowArguments) -> String {
    let AuditShowArguments { sandbox, namespace } = arguments;
    let is_uid = sandbox.len() == 36 && sandbox.bytes().filter(|byte| *byte == b'-').count() == 4;
    match is_uid || sandbox.contains('/') {
        true => sandbox.clone(),
        false => format!("{namespace}/{sandbox}"),
    }
}

fn summarize(folder: &Path, arguments: &AuditShowArguments) -> anyhow::Result<ExitCode> {
    exists(folder)?;
    let sandbox = sandbox(arguments);
    let filter = Filter { sandbox: Some(sandbox.clone()), ..Filter::default() };
    let (mut reader, mut summary) = (Reader::new(folder, 0), Summary::default());
    while let Some(entry) = next(&mut reader)? {
        let view = View::parse(entry.event());
        if filter.selects(&view) {
            summary.add(&view);
        }
    }
    if summary.is_empty() {
        bail!("no event is about the Sandbox {sandbox}; `hutch audit list` names all");
    }
    write!(io::stdout().lock(), "Sandbox {sandbox}\n{summary}")?;
    Ok(ExitCode::SUCCESS)
}

fn check(folder: &Path, arguments: &AuditVerifyArguments) -> anyhow::Result<ExitCode> {
    exists(folder)?;
    let key = arguments.key.as_deref().map(PublicKey::read).transpose().context("--key")?;
    let report = verify(folder, key)?;
    for fault in &report.faults {
        println!("{fault}");
    }
    if report.more > 0 {
        println!("and {} more", report.more);
    }
    let faults = report.faults.len() as u64 + report.more;
    println!(
        "{} records in {} segments, from {} to {}; signed up to {}; {faults} faults",
        report.records, report.segments, report.first, report.last, report.signed
    );
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn send(folder: &Path, arguments: &AuditExportArguments) -> anyhow::Result<ExitCode> {
    exists(folder)?;
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
    let sent = runtime()?.block_on(export(folder, to, arguments))?;
    println!("sent up to record {sent}");
    Ok(ExitCode::SUCCESS)
}

async fn export(folder: &Path, to: &Destination, arguments: &AuditExportArguments) -> anyhow::Result<u64> {
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
    let told = signals::to_stop()?;
    let mut exporter = Exporter::new(folder, &arguments.name, to, &options, arguments.follow)?;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        told.wait().await;
        let _ = stop.send(true);
        // A receiver of the end of this task would never end.
        std::future::pending::<()>().await;
    });
    exporter.run(stopping).await?;
    Ok(exporter.sent())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_has_a_namespace_or_is_a_uid() {
        let of = |name: &str| {
            sandbox(&AuditShowArguments { sandbox: name.to_owned(), namespace: "team".to_owned() })
        };
        assert_eq!(of("a"), "team/a");
        assert_eq!(of("other/a"), "other/a");
        assert_eq!(of("0b1c1f0e-5b1f-4c57-9f0a-6d3b8c1d2e3f"), "0b1c1f0e-5b1f-4c57-9f0a-6d3b8c1d2e3f");
    }
}

//! `hutch logs`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::AsyncReadExt;
use hutch_api::OperatingMode;
use kube::ResourceExt;
use kube::api::LogParams;

use super::sandbox::{Cluster, mode};
use super::stdio::{Piece, Printer};
use super::wait::Patience;
use super::{NOBODY_READS, api_error, finish};
use crate::cli::LogsArguments;

/// Bytes that are printed at a time.
const CHUNK: usize = 32 * 1024;

/// Prints it as it comes.
pub(crate) fn main(arguments: &LogsArguments) -> ExitCode {
    finish("logs", 1, print(arguments))
}

async fn print(arguments: &LogsArguments) -> anyhow::Result<u8> {
    let cluster = Cluster::connect(&arguments.place).await?;
    let sandbox = cluster.find(&arguments.sandbox.named, &mut Patience::new(Duration::ZERO)).await?;
    if mode(&sandbox) == OperatingMode::Suspended {
        let name = sandbox.name_any();
        bail!(
            "sandbox {name} is suspended and its log has gone with its Pod; `hutch resume {name}` starts it again"
        );
    }
    let target = cluster.container(&sandbox, arguments.container.name.as_deref()).await?;
    let wanted = LogParams {
        container: Some(target.container),
        follow: arguments.follow,
        tail_lines: arguments.tail.map(i64::from),
        since_seconds: arguments.since.and_then(|since| i64::try_from(since.as_secs()).ok()),
        ..LogParams::default()
    };
    let log = cluster.pods.log_stream(&target.pod, &wanted).await.map_err(api_error)?;
    let mut log = std::pin::pin!(log);
    let printer = Printer::start();
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = log.read(&mut chunk).await.context("the log broke off")?;
        if count == 0 {
            break;
        }
        if printer.pieces.send(Piece::Stdout(chunk[..count].to_vec().into())).await.is_err() {
            return Ok(NOBODY_READS);
        }
    }
    Ok(if printer.finish().await { 0 } else { NOBODY_READS })
}

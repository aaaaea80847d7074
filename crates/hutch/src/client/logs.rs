//! `hutch logs`.

use std::process::ExitCode;

use anyhow::Context;
use hutch_client::LogOptions;
use tokio::io::AsyncReadExt;

use super::stdio::Printer;
use super::{OUTPUT_CLOSED, connect, finish, with_hint};
use crate::cli::LogsArguments;
use hutch_client::Output;

/// Maximum bytes printed at a time.
const CHUNK: usize = 32 * 1024;

/// Prints the log as it arrives.
pub(crate) fn main(arguments: &LogsArguments) -> ExitCode {
    finish("logs", 1, print(arguments))
}

async fn print(arguments: &LogsArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let options = LogOptions { follow: arguments.follow, tail: arguments.tail, since: arguments.since };
    let container = arguments.container.name.as_deref();
    let log = sandboxes.logs(&arguments.sandbox.name, container, &options).await.map_err(with_hint)?;
    let mut log = std::pin::pin!(log);
    let printer = Printer::start();
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = log.read(&mut chunk).await.context("the log broke off")?;
        if count == 0 {
            break;
        }
        if printer.pieces.send(Output::Stdout(chunk[..count].to_vec().into())).await.is_err() {
            return Ok(OUTPUT_CLOSED);
        }
    }
    Ok(if printer.finish().await { 0 } else { OUTPUT_CLOSED })
}

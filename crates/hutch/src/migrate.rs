//! `hutch migrate`: steps of an upgrade from `v1alpha1`, before and after the new CRDs are applied.

use std::process::ExitCode;

use anyhow::Context;
use hutch_webhook::Migration;

use crate::cli::{MigrateArguments, Phase};

/// Runs one phase. Exit status 1 if the user has to do something.
pub(crate) fn main(arguments: MigrateArguments) -> ExitCode {
    match crate::runtime::runtime().and_then(|runtime| runtime.block_on(migrate(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Problems of objects have a line each.
            let text = crate::client::unreachable_server(&error).unwrap_or_else(|| format!("{error:#}"));
            eprintln!("hutch migrate: {text}");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(arguments: MigrateArguments) -> anyhow::Result<()> {
    let config = crate::cluster::config(arguments.kubeconfig.as_deref()).await?;
    let client = hutch_serve::retry::client(config).context("the Kubernetes API")?;
    let migration = Migration { client, namespace: arguments.namespace, dry_run: arguments.dry_run };
    let mut say = |line: String| println!("{line}");
    match arguments.phase {
        Phase::Bootstrap => migration.bootstrap(&mut say).await?,
        Phase::Migrate => migration.rewrite(&mut say).await?,
    }
    Ok(())
}

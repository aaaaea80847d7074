//! `hutch migrate`: what an upgrade from `v1alpha1` needs before and after the new definitions are applied.

use std::process::ExitCode;

use anyhow::Context;
use hutch_webhook::Migration;

use crate::cli::{MigrateArguments, Phase};

/// Exit status 1 when something is left to do for whoever started it.
pub(crate) fn main(arguments: MigrateArguments) -> ExitCode {
    match crate::runtime::runtime().and_then(|runtime| runtime.block_on(migrate(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch migrate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(arguments: MigrateArguments) -> anyhow::Result<()> {
    let config = crate::cluster::config(arguments.kubeconfig.as_deref()).await?;
    let client = hutch_serve::patience::client(config).context("the Kubernetes API")?;
    let migration = Migration { client, namespace: arguments.namespace, dry_run: arguments.dry_run };
    let mut say = |line: String| println!("{line}");
    match arguments.phase {
        Phase::Bootstrap => migration.bootstrap(&mut say).await?,
        Phase::Migrate => migration.rewrite(&mut say).await?,
    }
    Ok(())
}

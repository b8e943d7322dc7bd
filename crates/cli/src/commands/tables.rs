//! Tables.

use std::io::Write;

use sextant_client::OptionsChange;
use sextant_common::Error;
use sextant_common::manifest::{Compression, TableInfo, TableOptions};

use super::client;
use crate::args::{AlterTableArgs, Connection, CreateTableArgs, DropTableArgs, Switch};
use crate::exit::{CommandResult, Failure};

pub async fn create(args: CreateTableArgs) -> CommandResult {
    let options = TableOptions {
        filter_inserts: args.filter_inserts,
        partition_prefix: args.partition_prefix,
        compression: args.compression.into(),
        filter_prefix: args.filter_prefix,
    };
    let client = client(&args.connection).await?;
    let (id, created) = client.create_table(&args.name, &options).await?;
    if !created && options != TableOptions::default() {
        let is_it = |table: &TableInfo| table.id == id;
        let there = client.list_tables().await?.into_iter().find(is_it).map(|table| table.options);
        if let Some(there) = there.filter(|there| *there != options) {
            let there = match described(&there) {
                none if none.is_empty() => "\tthe defaults".to_owned(),
                others => others,
            };
            let why = format!("table {} ({id}) exists already, with other options:{there}", args.name);
            return Err(Failure::negative(why));
        }
    }
    let verb = if created { "created" } else { "exists already" };
    writeln!(std::io::stdout(), "table {} ({id}) {verb}", args.name)?;
    Ok(())
}

pub async fn list(connection: Connection) -> CommandResult {
    let mut stdout = std::io::stdout().lock();
    for table in client(&connection).await?.list_tables().await? {
        writeln!(stdout, "{}\t{}{}", table.id, table.name, described(&table.options))?;
    }
    Ok(())
}

/// What is not as usual, each after a tab.
fn described(options: &TableOptions) -> String {
    let mut out = String::new();
    if options.filter_inserts {
        out.push_str("\tfilter_inserts");
    }
    if options.partition_prefix > 0 {
        out.push_str(&format!("\tpartition_prefix {}", options.partition_prefix));
    }
    match options.filter_prefix {
        0 => {}
        TableOptions::BY_INNER_KEY => out.push_str("\tfilter_prefix by key"),
        bytes => out.push_str(&format!("\tfilter_prefix {bytes}")),
    }
    out.push_str(match options.compression {
        Compression::None => "\tuncompressed",
        Compression::Lz4 => "",
        Compression::Zstd => "\tzstd",
    });
    out
}

pub async fn alter(args: AlterTableArgs) -> CommandResult {
    let change = OptionsChange {
        filter_inserts: args.filter_inserts.map(|switch| matches!(switch, Switch::On)),
        compression: args.compression.map(Into::into),
        filter_prefix: args.filter_prefix,
    };
    let options = client(&args.connection).await?.alter_table(&args.name, &change).await?;
    if change.applied_to(&options) != options {
        let why = format!("a server is too old for this option; the table has{}", described(&options));
        return Err(Failure::from(Error::invalid(why)));
    }
    writeln!(std::io::stdout(), "table {} altered{}", args.name, described(&options))?;
    Ok(())
}

pub async fn drop(args: DropTableArgs) -> CommandResult {
    if !args.yes {
        let why = format!("this drops table {} with all its records: say --yes", args.name);
        return Err(Failure::usage(why));
    }
    let dropped = client(&args.connection).await?.drop_table(&args.name).await?;
    let verb = if dropped { "dropped" } else { "does not exist" };
    writeln!(std::io::stdout(), "table {} {verb}", args.name)?;
    Ok(())
}

//! How a store is opened.

use tourbillon_durable::{Durable, Postgres, Sqlite, Store};

use crate::args::StoreArgs;
use crate::failure::Failure;

/// Opens the store of the command line. It makes neither a file nor tables.
pub(crate) fn open(args: &StoreArgs) -> Result<Durable, Failure> {
    let store: Box<dyn Store> = match (&args.url, &args.file) {
        (Some(url), None) => {
            let builder = Postgres::builder(url)?.schema(&args.schema);
            let builder = builder
                .statement_limit(args.timeout)
                .scan_limit(args.timeout);
            Box::new(builder.create_tables(false).connect()?)
        }
        (None, Some(file)) => {
            let file = Sqlite::open_existing(file, &args.prefix)?;
            Box::new(file.with_busy_limit(args.timeout))
        }
        _ => {
            return Err(Failure::Usage(
                "which store? Name a SQLite file by --file, or a PostgreSQL server by --url"
                    .to_owned(),
            ));
        }
    };
    Ok(Durable::builder(store).name("tourbillon").start()?)
}

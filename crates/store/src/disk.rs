use std::path::{Path, PathBuf};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, TableError,
};

use crate::state::State;
use crate::value::{Entry, Event, Value};
use crate::{Error, FORMAT};

/// `collection NUL name` -> created (8 bytes, little endian), revision (8 bytes), value.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
/// `format` and `revision`.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Pages kept by the engine. Reads never reach it, so it only has to serve one commit.
const CACHE_BYTES: usize = 8 << 20;
const HEADER: usize = 16;

/// Opens the file; called again after an error, because the engine stays unusable after one.
pub(crate) type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// The durable side: one file.
pub(crate) struct Disk {
    path: PathBuf,
    opener: Opener,
    database: Option<Database>,
}

pub(crate) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

impl Disk {
    pub(crate) fn open(path: &Path, opener: Opener) -> Result<Disk, Error> {
        let database = opener().map_err(|error| opening(path, error))?;
        let disk = Disk { path: path.into(), opener, database: Some(database) };
        disk.check_format()?;
        Ok(disk)
    }

    fn check_format(&self) -> Result<(), Error> {
        let damaged = |cause: redb::Error| match Error::write(&cause) {
            Error::DiskFull => Error::DiskFull,
            _ => Error::Damaged { path: self.path.clone(), cause: cause.to_string() },
        };
        let found = self.read_meta("format").map_err(damaged)?;
        match found {
            Some(found) if found > FORMAT => {
                Err(Error::Newer { path: self.path.clone(), found, known: FORMAT })
            }
            Some(_) => Ok(()),
            None => self.prepare().map_err(damaged),
        }
    }

    fn prepare(&self) -> Result<(), redb::Error> {
        let Some(database) = &self.database else { return Ok(()) };
        let write = database.begin_write()?;
        write.open_table(META)?.insert("format", FORMAT)?;
        write.open_table(OBJECTS)?;
        write.commit()?;
        Ok(())
    }

    fn read_meta(&self, key: &str) -> Result<Option<u64>, redb::Error> {
        let Some(database) = &self.database else { return Ok(None) };
        let read = database.begin_read()?;
        match read.open_table(META) {
            Ok(table) => Ok(table.get(key)?.map(|value| value.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }

    /// Reads everything into memory.
    pub(crate) fn load<V: Value>(&self) -> Result<State<V>, Error> {
        let damaged = |cause: String| Error::Damaged { path: self.path.clone(), cause };
        self.try_load(&damaged).map_err(|error| damaged(error.to_string()))?
    }

    fn try_load<V: Value>(
        &self,
        damaged: &dyn Fn(String) -> Error,
    ) -> Result<Result<State<V>, Error>, redb::Error> {
        let revision = self.read_meta("revision")?.unwrap_or(0);
        let mut state = State::new(revision);
        let Some(database) = &self.database else { return Ok(Ok(state)) };
        let table = database.begin_read()?.open_table(OBJECTS)?;
        for row in table.iter()? {
            let (key, row) = row?;
            match decode(key.value(), row.value()) {
                Ok((collection, entry)) => state.load(collection, entry),
                Err(cause) => return Ok(Err(damaged(cause))),
            }
        }
        Ok(Ok(state))
    }

    /// Writes a batch and its last revision in one durable transaction.
    pub(crate) fn commit<V: Value>(&mut self, batch: &[(Box<str>, Event<V>)]) -> Result<(), Error> {
        let Some(last) = batch.last().map(|(_, event)| event.revision()) else { return Ok(()) };
        if let Err(error) = self.try_commit(batch, last) {
            // The engine is unusable after an error of the disk. It is opened anew at the next write; whether
            // this batch reached the disk is known only then.
            self.database = None;
            let error = Error::write(&error);
            return match self.reopen() {
                Ok(Some(revision)) if revision >= last => Ok(()),
                _ => Err(error),
            };
        }
        Ok(())
    }

    /// Reopens the file and returns its last revision.
    fn reopen(&mut self) -> Result<Option<u64>, redb::Error> {
        let database = (self.opener)()?;
        self.database = Some(database);
        self.read_meta("revision")
    }

    fn try_commit<V: Value>(&mut self, batch: &[(Box<str>, Event<V>)], last: u64) -> Result<(), redb::Error> {
        if self.database.is_none() {
            self.reopen()?;
        }
        let Some(database) = &self.database else { return Ok(()) };
        let write = database.begin_write()?;
        {
            let mut objects = write.open_table(OBJECTS)?;
            let mut row = Vec::new();
            for (collection, event) in batch {
                let entry = event.entry();
                let key = format!("{collection}\0{}", entry.name);
                if matches!(event, Event::Deleted { .. }) {
                    objects.remove(key.as_str())?;
                } else {
                    encode(entry, &mut row);
                    objects.insert(key.as_str(), row.as_slice())?;
                }
            }
            write.open_table(META)?.insert("revision", last)?;
        }
        write.commit()?;
        Ok(())
    }
}

fn encode<V: Value>(entry: &Entry<V>, row: &mut Vec<u8>) {
    row.clear();
    row.extend_from_slice(&entry.created.to_le_bytes());
    row.extend_from_slice(&entry.revision.to_le_bytes());
    row.extend_from_slice(entry.value.bytes());
}

fn decode<'a, V: Value>(key: &'a str, row: &[u8]) -> Result<(&'a str, Entry<V>), String> {
    let (collection, name) = key.split_once('\0').ok_or_else(|| format!("key {key:?} has no collection"))?;
    let number = |at: usize| row.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let (Some(created), Some(revision)) = (number(0), number(8)) else {
        return Err(format!("the value of {collection} {name} is too short"));
    };
    let value = V::open(&row[HEADER..]).map_err(|cause| format!("{collection} {name}: {cause}"))?;
    Ok((collection, Entry { name: name.into(), revision, created, value }))
}

fn opening(path: &Path, error: DatabaseError) -> Error {
    let path = path.to_path_buf();
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::Locked(path),
        DatabaseError::UpgradeRequired(found) => {
            Error::Damaged { path, cause: format!("its engine format {found} is not supported") }
        }
        DatabaseError::Storage(StorageError::Io(io)) => match io.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::DiskFull,
            std::io::ErrorKind::InvalidData => Error::Damaged { path, cause: "it is not a store".into() },
            _ => Error::Open { path, cause: io.to_string() },
        },
        DatabaseError::Storage(StorageError::Corrupted(cause)) => Error::Damaged { path, cause },
        other => Error::Open { path, cause: other.to_string() },
    }
}

//! Tables whose rows are the values of a map in memory. Rows are written in bulk, as one JSON array per table (writing
//! row by row is 16 times slower, because each statement is handed to SQLite's thread), and loaded as JSON.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection};

/// A table, its key, and its other columns.
pub struct Table {
    /// The table's name, quoted if SQL needs it.
    pub name: &'static str,
    /// Columns of the primary key; empty if rows are only ever added.
    pub key: &'static [&'static str],
    /// Columns that hold one plain value.
    pub plain: &'static [&'static str],
    pub json: &'static [&'static str],
}

/// The number of rows that one statement writes. The text of all rows of a large change would need too much memory.
pub const ROWS_AT_A_TIME: usize = 1000;

/// The rows of one table that a transaction writes, as JSON texts, which need a tenth of the memory of trees. If a key
/// is set several times, the last value wins.
pub struct Rows {
    table: &'static Table,
    rows: BTreeMap<String, (Box<str>, bool)>,
}

impl Rows {
    /// Returns an empty set of rows for `table`.
    pub const fn of(table: &'static Table) -> Self {
        Self { table, rows: BTreeMap::new() }
    }

    /// Adds `row` to the rows to write or, if `keep` is false, its key to the rows to delete.
    pub fn set(&mut self, row: &Value, keep: bool) {
        let key: Vec<String> = self.table.key.iter().map(|column| row[column].to_string()).collect();
        let key = if key.is_empty() { format!("{:09}", self.rows.len()) } else { key.join(",") };
        self.rows.insert(key, (row.to_string().into_boxed_str(), keep));
    }

    /// Writes and deletes the rows.
    pub async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        let (upserts, deletes): (Vec<_>, Vec<_>) = self.rows.into_values().partition(|(_, keep)| *keep);
        for (statement, rows) in [(self.table.upsert(), upserts), (self.table.delete(), deletes)] {
            let rows: Vec<_> = rows.into_iter().map(|(row, _)| row).collect();
            for array in arrays(&rows) {
                sqlx::query(AssertSqlSafe(statement.clone())).bind(array).execute(&mut *connection).await?;
            }
        }
        Ok(())
    }
}

impl Table {
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.key.iter().chain(self.plain).chain(self.json).copied()
    }

    fn upsert(&self) -> String {
        let columns: Vec<&str> = self.columns().collect();
        let updates: Vec<String> = columns
            .iter()
            .filter(|column| !self.key.contains(column))
            .map(|column| format!("\"{column}\" = excluded.\"{column}\""))
            .collect();
        let conflict = match self.key {
            [] => String::new(),
            key => format!("ON CONFLICT ({}) DO UPDATE SET {}", quoted(key), updates.join(", ")),
        };
        format!(
            // `WHERE true` keeps SQLite's parser from reading ON CONFLICT as a join constraint.
            "INSERT INTO {} ({}) SELECT {} FROM json_each(?1) WHERE true {conflict}",
            self.name,
            quoted(&columns),
            values(&columns),
        )
    }

    fn delete(&self) -> String {
        format!(
            "DELETE FROM {} WHERE ({}) IN (SELECT {} FROM json_each(?1))",
            self.name,
            quoted(self.key),
            values(self.key)
        )
    }

    /// Loads all rows that satisfy `condition`.
    pub async fn load<Row: DeserializeOwned>(
        &self,
        connection: &mut SqliteConnection,
        condition: &str,
    ) -> Result<Vec<Row>, super::StoreError> {
        let plain = self.key.iter().chain(self.plain).map(|column| format!("'{column}', \"{column}\""));
        let json = self.json.iter().map(|column| format!("'{column}', json(\"{column}\")"));
        let fields: Vec<String> = plain.chain(json).collect();
        let query = format!("SELECT json_object({}) FROM {} WHERE {condition}", fields.join(", "), self.name);
        // Each text is parsed before the next is read, because all texts together would need more memory than the
        // values.
        let mut texts = sqlx::query_scalar::<_, String>(AssertSqlSafe(query)).fetch(connection);
        let mut rows = Vec::new();
        while let Some(text) = texts.try_next().await? {
            let row = serde_json::from_str(&text);
            rows.push(row.map_err(|source| super::StoreError::Row { table: self.name, source })?);
        }
        Ok(rows)
    }
}

/// Returns a row as JSON. Rows are plain structs of strings and numbers, which always serialize.
pub fn row(row: &impl Serialize) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

/// Joins rows to JSON arrays, one for each statement.
pub fn arrays(rows: &[Box<str>]) -> impl Iterator<Item = String> {
    rows.chunks(ROWS_AT_A_TIME).map(array)
}

/// Joins rows to the JSON array of one statement.
pub fn array(rows: &[Box<str>]) -> String {
    format!("[{}]", rows.join(","))
}

fn quoted(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ")
}

fn values(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("value ->> '$.{column}'")).collect::<Vec<_>>().join(", ")
}

//! Tables whose rows are the values of a map in memory: written in bulk as one JSON array each (row by row is 16 times
//! slower, for each statement visits SQLite's own thread), and loaded the same way.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection};

/// A table, its key, and those of its columns that hold JSON.
pub struct Table {
    /// Its name, quoted where SQL needs it.
    pub name: &'static str,
    /// Columns of its primary key; none for a table that only grows.
    pub key: &'static [&'static str],
    /// Columns that hold one value each.
    pub plain: &'static [&'static str],
    /// Columns that hold a JSON document or NULL.
    pub json: &'static [&'static str],
}

/// Rows of one table that a transaction writes; of several values for one key the last wins.
pub struct Rows {
    table: &'static Table,
    rows: BTreeMap<String, (Value, bool)>,
}

impl Rows {
    /// Nothing yet.
    pub const fn of(table: &'static Table) -> Self {
        Self { table, rows: BTreeMap::new() }
    }

    /// Writes `row` whole, or, where it is not to be kept, removes the row that has its key.
    pub fn set(&mut self, row: Value, keep: bool) {
        let key: Vec<String> = self.table.key.iter().map(|column| row[column].to_string()).collect();
        let key = if key.is_empty() { format!("{:09}", self.rows.len()) } else { key.join(",") };
        self.rows.insert(key, (row, keep));
    }

    /// Sends them.
    pub async fn write(self, connection: &mut SqliteConnection) -> sqlx::Result<()> {
        let (upserts, deletes): (Vec<_>, Vec<_>) = self.rows.into_values().partition(|(_, keep)| *keep);
        run(connection, &self.table.upsert(), upserts).await?;
        run(connection, &self.table.delete(), deletes).await
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
            // `WHERE true` keeps SQLite's parser from taking ON CONFLICT for a join constraint.
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

    /// All rows that satisfy `condition`.
    pub async fn load<Row: DeserializeOwned>(
        &self,
        connection: &mut SqliteConnection,
        condition: &str,
    ) -> Result<Vec<Row>, super::StoreError> {
        let plain = self.key.iter().chain(self.plain).map(|column| format!("'{column}', \"{column}\""));
        let json = self.json.iter().map(|column| format!("'{column}', json(\"{column}\")"));
        let fields: Vec<String> = plain.chain(json).collect();
        let query = format!("SELECT json_object({}) FROM {} WHERE {condition}", fields.join(", "), self.name);
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(connection).await?;
        rows.iter()
            .map(|row| serde_json::from_str(row))
            .collect::<Result<_, _>>()
            .map_err(|source| super::StoreError::Row { table: self.name, source })
    }
}

/// A row as JSON. Rows are plain structs of strings and numbers, which always serialize.
pub fn row(row: &impl Serialize) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

async fn run(connection: &mut SqliteConnection, statement: &str, rows: Vec<(Value, bool)>) -> sqlx::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<Value> = rows.into_iter().map(|(row, _)| row).collect();
    let rows = Value::Array(rows).to_string();
    sqlx::query(AssertSqlSafe(statement.to_owned())).bind(rows).execute(connection).await.map(drop)
}

fn quoted(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ")
}

fn values(columns: &[&str]) -> String {
    columns.iter().map(|column| format!("value ->> '$.{column}'")).collect::<Vec<_>>().join(", ")
}

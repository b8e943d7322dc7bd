//! The numbered databases of the Redis protocol. Each is two tables: one that all front ends see, and one of elements
//! ([`object`](crate::object)).

use crate::object::ELEMENTS_TABLE;

/// One of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Database(u8);

/// The default table's name is "" to those who ask for it; it is database 0.
const TABLES: [&str; Database::COUNT] = [
    "", "db1", "db2", "db3", "db4", "db5", "db6", "db7", "db8", "db9", "db10", "db11", "db12", "db13",
    "db14", "db15",
];

/// (Clients cannot use tables whose names begin so.)
const ELEMENTS: [&str; Database::COUNT] = [
    ELEMENTS_TABLE,
    "sextant.elements.db1",
    "sextant.elements.db2",
    "sextant.elements.db3",
    "sextant.elements.db4",
    "sextant.elements.db5",
    "sextant.elements.db6",
    "sextant.elements.db7",
    "sextant.elements.db8",
    "sextant.elements.db9",
    "sextant.elements.db10",
    "sextant.elements.db11",
    "sextant.elements.db12",
    "sextant.elements.db13",
    "sextant.elements.db14",
    "sextant.elements.db15",
];

impl Database {
    /// How many there are, as in Redis.
    pub const COUNT: usize = 16;
    /// That of connections which have selected none: the default table.
    pub const FIRST: Database = Database(0);

    /// None: there is no database of this number.
    pub fn new(number: i64) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (usize::from(number) < Self::COUNT).then_some(Self(number))
    }

    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    /// Of the keys. "": the default table.
    pub fn table(self) -> &'static str {
        TABLES[usize::from(self.0)]
    }

    /// Of the elements of objects.
    pub fn elements(self) -> &'static str {
        ELEMENTS[usize::from(self.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::check_table_name;

    #[test]
    fn a_database_is_the_tables_of_its_number() {
        assert_eq!(Database::all().count(), Database::COUNT);
        for database in Database::all() {
            let number = database.number();
            assert_eq!(Database::new(number.into()), Some(database));
            let (table, elements) = match number {
                0 => (String::new(), ELEMENTS_TABLE.to_owned()),
                n => (format!("db{n}"), format!("{ELEMENTS_TABLE}.db{n}")),
            };
            assert_eq!((database.table(), database.elements()), (&table[..], &elements[..]));
            check_table_name(database.elements()).unwrap();
        }
        assert_eq!((Database::new(-1), Database::new(16), Database::new(256)), (None, None, None));
    }
}

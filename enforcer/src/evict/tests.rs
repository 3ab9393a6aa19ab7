mod brake;
mod events;
mod gentle;
pub(super) mod hook;
mod kill;
mod levels;
pub(super) mod node;
mod open;
mod whole;

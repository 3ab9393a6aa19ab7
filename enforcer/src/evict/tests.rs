mod events;
mod gentle;
mod kill;
mod node;
mod open;
mod whole;

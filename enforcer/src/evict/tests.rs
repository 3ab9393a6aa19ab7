mod brake;
mod events;
mod gentle;
mod kill;
mod levels;
mod node;
mod open;
mod whole;

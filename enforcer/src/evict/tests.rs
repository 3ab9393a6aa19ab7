mod events;
mod kill;
mod node;
mod open;
mod whole;

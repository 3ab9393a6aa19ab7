mod property;
mod scenario;

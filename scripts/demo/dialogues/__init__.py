"""The dialogues, one file a skill; each offers `MAKERS`, its weighted makers of episodes."""

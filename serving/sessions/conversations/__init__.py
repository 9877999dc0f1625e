"""Conversations: a tree of turns, each with its parent, and names that point into it.

ids             what responses, conversations and items are called; each id tells its tree
records         a turn, a conversation, their items
store           the interface of a store: rows of trees, changed all at once; sqlite_store, postgres_store, redis_store
conversations   begin, add to, end and read turns; branch; export and erase
keeper          says that this process lives, and closes the turns of processes that do not

    resp_1 --- resp_2 --- resp_3          conv_a -> resp_3
                   `----- resp_4          an edit, or another try: the parent of resp_3, once more

A turn's items are written as they become complete, each before anything is done that depends on it. Until a turn has
ended its conversation points to the turn before, so whatever is killed, what is read is whole.
"""

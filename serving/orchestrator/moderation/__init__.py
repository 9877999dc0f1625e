"""What may be asked and what may be answered.

judges/       one interface; rules, similarity to examples, a head on the encoder, a guard model
panel         all judges of a deployment: their limits of time, and what happens where one fails
policy        what a tenant's policy makes of their findings
paced_choice  one answer, judged beside its decoding and shown a little behind it
unescaped     the same answer as a program reads it
moderation    what the API is given: whose policy, and the verdicts
review        what is routed to a person
review_record one such text, and the verdict on it
canaries      benign texts that the judges are tried on
"""
